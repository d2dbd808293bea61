"""Whether mlx_lm reads a bundle's text files as the checkpoint means them: token ids, chat template, stop tokens.

Tokenizer and template are asked for in child processes of their own, so that the death of one is not blamed on the other. A chat
template is a stranger's program: it is rendered confined, once the tokenizer is loaded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.child import run_in_child
from converters.targets import other_targets
from converters.targets.mlx_files import CONFIG_NAME, as_json, mlx_config, text_files
from converters.targets.mlx_run import runtime_name
from converters.template_source import (
    CPU_S,
    MEMORY_BYTES,
    TIMEOUT_S,
    confined,
    death_blamed_on_template,
    expected_conversations,
    unless_refused,
)
from converters.template_texts import CONVERSATIONS, Message
from converters.tokenizer import Difference, reference_encodings, shortened
from toolkit.errors import FidelityError

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint


@dataclass(frozen=True)
class TextProof:
    """On how many fixed texts and conversations mlx_lm agreed with the checkpoint's own tokenizer and template.

    `verified_with` names that mlx_lm, and what it computes with here.
    """

    verified_texts: int
    verified_conversations: int
    verified_with: str


def prove_checkpoint(checkpoint: Checkpoint) -> TextProof:
    """`prove_text` on the files a bundle of this checkpoint is going to have, before any weight is written."""
    with tempfile.TemporaryDirectory(prefix="ondevice-toolkit-") as name:
        for file_name, content in text_files(checkpoint).items():
            (Path(name) / file_name).write_bytes(content)
        (Path(name) / CONFIG_NAME).write_text(as_json(mlx_config(checkpoint.spec, {}, "float32")), encoding="utf-8")
        return prove_text(checkpoint, Path(name))


def prove_text(checkpoint: Checkpoint, folder: Path) -> TextProof:
    """Have mlx_lm's tokenizer encode, decode and render what the checkpoint's own is known to.

    Args:
        checkpoint: Gives tokenizer, template and stop ids.
        folder: A bundle's config.json, tokenizer files and template.

    Raises:
        FidelityError: mlx_lm reads a text, a conversation or the stop tokens differently; `why` holds the first difference.
        FormatError: Tokenizer or template are damaged, or the template takes too much.
        ToolkitError: mlx_lm cannot load the tokenizer, or died of it.
    """
    expected = expected_conversations(checkpoint)
    encodings = {"": [], **reference_encodings(checkpoint.tokenizer.require_json())}
    arguments = {"folder": str(folder), "encodings": encodings}
    answer = run_in_child(f"{__name__}:compare_texts", arguments, what="ask mlx_lm's tokenizer", timeout_s=TIMEOUT_S)
    wanted, found = sorted(checkpoint.spec.eos_token_ids), answer["stop_ids"]
    if found != wanted:
        raise _differs(checkpoint, "stops at other tokens", f"the checkpoint's stop ids are {wanted}, mlx_lm's {found}")
    if answer["difference"]:
        raise _differs(checkpoint, "reads the tokenizer differently", answer["difference"])
    _prove_template(checkpoint, folder, expected)
    return TextProof(len(encodings), sum(text is not None for text in expected), answer["verified_with"])


def _prove_template(checkpoint: Checkpoint, folder: Path, expected: Sequence[str | None]) -> None:
    if not expected:
        return
    with death_blamed_on_template("mlx_lm"):
        arguments = {"folder": str(folder), "cpu_s": CPU_S, "memory_bytes": MEMORY_BYTES}
        rendered = run_in_child(f"{__name__}:render", arguments, what="ask mlx_lm for the chat template", timeout_s=TIMEOUT_S)["rendered"]
    for number, (wanted, found) in enumerate(zip(expected, rendered, strict=True), start=1):
        if wanted != found:
            why = f"conversation {number}: {shortened(wanted)} became {shortened(found)}"
            raise _differs(checkpoint, "renders the chat template differently", why)


def _differs(checkpoint: Checkpoint, what: str, why: str) -> FidelityError:
    return FidelityError(f"mlx_lm {what}", why=why, fix=other_targets("mlx", checkpoint.spec.model_type))


def compare_texts(folder: str, encodings: dict[str, list[int]]) -> dict[str, Any]:
    """A child's part: the first difference in tokenizing, in words, and mlx_lm's stop tokens."""
    from tokenizers import Tokenizer

    reference, tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json")), _tokenizer(folder)
    differences = (_text_difference(reference, tokenizer, text, ids) for text, ids in encodings.items())
    return {
        "difference": next((found for found in differences if found), ""),
        "stop_ids": sorted(tokenizer.eos_token_ids),
        "verified_with": runtime_name(),
    }


def render(folder: str, cpu_s: float, memory_bytes: int) -> dict[str, Any]:
    """A child's part: every conversation as mlx_lm renders it, None where the template refuses."""
    tokenizer = _tokenizer(folder)
    with confined("mlx_lm", cpu_s=cpu_s, memory_bytes=memory_bytes):
        return {"rendered": [unless_refused(partial(_rendered, tokenizer, messages)) for messages in CONVERSATIONS]}


def _tokenizer(folder: str) -> Any:
    from mlx_lm.utils import load_config, load_tokenizer

    place = Path(folder)
    return load_tokenizer(place, eos_token_ids=load_config(place).get("eos_token_id"))


def _text_difference(reference: Any, tokenizer: Any, text: str, ids: list[int]) -> str:
    """How a text's ids differ, with the tokens a tokenizer adds by itself and without, or what the ids decode to."""
    for adds, wanted in ((True, reference.encode(text).ids), (False, ids)):
        found = list(tokenizer.encode(text, add_special_tokens=adds))
        if wanted != found:
            return str(Difference(text, wanted, found))
    said, back = reference.decode(ids, skip_special_tokens=False), tokenizer.decode(ids)
    return "" if said == back else f"{text[:60]!r} decoded: expected {shortened(said)}, got {shortened(back)}"


def _rendered(tokenizer: Any, messages: Sequence[Message]) -> str:
    return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
