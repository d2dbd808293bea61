"""adapter_config.json of a PEFT LoRA adapter: the scale of each module, and what is refused by name."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.architectures.fields import Fields
from converters.read.json_file import read_json_object
from toolkit.errors import UnsupportedModelError

CONFIG_NAME = "adapter_config.json"
_MAX_CONFIG_BYTES = 4 * 2**20
_MAX_RANK = 2**16
# Ways to begin that leave the base model as it is. The others (PiSSA, OLoRA, LoftQ, ...) change it, and the adapter alone
# does not say how.
_PLAIN_BEGINNINGS = (True, False, "gaussian", "eva", "orthogonal")
_REFUSED = {
    "use_dora": "it is DoRA: a magnitude a row, which W + scale * B A does not have",
    "use_qalora": "it is QA-LoRA: its A works on group averages",
    "lora_bias": "its B has a bias of its own",
    "modules_to_save": "it carries whole modules of its own beside the low-rank ones",
    "trainable_token_indices": "it carries rows of the embedding table",
    "target_parameters": "it adapts parameters instead of modules",
    "layer_replication": "it repeats layers of the base model",
    "alora_invocation_tokens": "it is an activated LoRA: it works only after certain tokens, so it cannot be merged",
    "megatron_config": "it is in Megatron's layout",
}


@dataclass(frozen=True)
class AdapterConfig:
    """What decides the scale of a module: W + scale * B A.

    Args:
        rank: r where no pattern says otherwise.
        alpha: lora_alpha where no pattern says otherwise.
        is_rank_stabilized: scale is alpha / sqrt(r) instead of alpha / r.
        rank_pattern: Module name, or the end of one as a regular expression, to its own r.
        alpha_pattern: The same for lora_alpha.
        base_name: What the base model was called; empty if it is not said.
        base_revision: Its commit, if it is said.
    """

    rank: int
    alpha: float
    is_rank_stabilized: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    base_name: str
    base_revision: str | None

    def rank_of(self, module: str) -> int:
        """r of a module, by its name in the base model."""
        return int(_matching(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        """What B A is multiplied with."""
        rank, alpha = self.rank_of(module), float(_matching(self.alpha_pattern, module, self.alpha))
        return alpha / math.sqrt(rank) if self.is_rank_stabilized else alpha / rank


def _matching(pattern: Mapping[str, Any], module: str, default: Any) -> Any:
    """PEFT's rule: a key is a regular expression for the whole name, or for its end after a dot; the first that matches holds."""
    return next((value for key, value in pattern.items() if re.fullmatch(rf"(?:.*\.)?(?:{key})", module)), default)


def read_adapter_config(directory: Path) -> AdapterConfig:
    """Read and judge a directory's adapter_config.json.

    Raises:
        FormatError: It is missing, damaged, or has a value that cannot be.
        UnsupportedModelError: It is no plain LoRA; what it is instead is named.
    """
    data = read_json_object(directory / CONFIG_NAME, max_bytes=_MAX_CONFIG_BYTES)
    fields = Fields(data, f"{directory.name}/{CONFIG_NAME}")
    kind = fields.text("peft_type")
    why = "" if kind == "LORA" else f"its peft_type is {kind}"
    why = why or next((reason for key, reason in _REFUSED.items() if data.get(key)), "")
    if not why and fields.text("bias", default="none") != "none":
        why = f"it carries trained biases (bias {data['bias']!r})"
    begun = data.get("init_lora_weights", True)
    if not why and not any(begun is plain or (isinstance(begun, str) and begun == plain) for plain in _PLAIN_BEGINNINGS):
        why = f"it began as {str(begun)[:40]!r}, which changes the base model as well"
    if why:
        raise UnsupportedModelError(
            f"the adapter {directory.name} cannot be merged", why=why, fix="merge it with PEFT (merge_and_unload) and convert the result"
        )
    return AdapterConfig(
        rank=fields.integer("r", maximum=_MAX_RANK),
        alpha=fields.number("lora_alpha", default=8.0),
        is_rank_stabilized=fields.boolean("use_rslora", default=False),
        rank_pattern=_pattern(fields, "rank_pattern", whole=True),
        alpha_pattern=_pattern(fields, "alpha_pattern", whole=False),
        base_name=fields.text("base_model_name_or_path", default=""),
        base_revision=fields.text("revision", default="") or None,
    )


def _pattern(fields: Fields, key: str, *, whole: bool) -> dict[str, Any]:
    pattern = fields.mapping(key)
    values = Fields(pattern, fields.origin)
    for name in pattern:
        try:
            re.compile(name)
        except re.error as error:
            raise fields.fail(key, f"holds {name[:60]!r}, which is no regular expression: {error}") from error
    return {name: values.integer(name, maximum=_MAX_RANK) if whole else values.number(name) for name in pattern}
