"""Typed, bounded reading of a config.json or of GGUF metadata. A wrong file fails here, with the key's name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from toolkit.errors import FormatError

# Far above any model known, far below what would exhaust memory while shapes are listed.
MAX_LAYERS = 1024
MAX_WIDTH = 2**20
MAX_VOCAB = 2**22
MAX_CONTEXT = 2**31

# What each number can be in a model that works, wide around every published one: least and most. Outside, the arithmetic
# still runs and the text is noise, so nothing later would notice.
PLAUSIBLE: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("rms_norm_eps", "attention.layer_norm_rms_epsilon"), (1e-12, 1e-2)),
    **dict.fromkeys(("rope_theta", "rope_local_base_freq", "rope.freq_base", "rope.freq_base_swa"), (1.0, 1e12)),
    **dict.fromkeys(("factor", "rope.scaling.factor", "rope.scale_linear"), (1.0, 1e5)),
    **dict.fromkeys(("low_freq_factor", "high_freq_factor", "attention_factor", "mscale", "mscale_all_dim"), (1e-3, 1e5)),
    **dict.fromkeys(("beta_fast", "beta_slow"), (1e-3, 1e5)),
    "original_max_position_embeddings": (1.0, float(MAX_CONTEXT)),
    "partial_rotary_factor": (1e-3, 1.0),
    "altup_coef_clip": (1e-3, 1e6),
    "query_pre_attn_scalar": (1e-3, float(MAX_WIDTH)),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), (1e-2, 1e6)),
}

# Spelled as in transformers' ACT2FN; those that the families read here are published with.
ACTIVATIONS = ("silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu")


class Fields:
    """A mapping whose values are checked as they are read. `origin` names the file in every error."""

    def __init__(self, data: Mapping[str, Any], origin: str, prefix: str = "") -> None:
        self.data, self.origin, self.prefix = data, origin, prefix

    def __contains__(self, key: str) -> bool:
        return self.data.get(self.prefix + key) is not None

    def fail(self, key: str, problem: str) -> FormatError:
        """The error for one key, ready to raise."""
        return FormatError(
            f"{self.origin} does not describe a model that can be read",
            why=f"{self.prefix + key} {problem}",
            fix="download the checkpoint again, or correct that key; nothing was converted",
        )

    def integer(self, key: str, *, minimum: int = 1, maximum: int = MAX_WIDTH, default: int | None = None) -> int:
        """A whole number in [minimum, maximum]; `default` stands in for an absent or null key."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise self.fail(key, f"must be a whole number, found {_shown(value)}")
        if not minimum <= int(value) <= maximum:
            raise self.fail(key, f"must be between {minimum} and {maximum}, found {_shown(value)}")
        return int(value)

    def number(self, key: str, *, default: float | None = None) -> float:
        """A finite number above zero, within `PLAUSIBLE` if the key is listed there."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
            raise self.fail(key, f"must be a number, found {_shown(value)}")
        if not 0 < value < 1e30 or not math.isfinite(value):
            raise self.fail(key, f"must be finite and above zero, found {_shown(value)}")
        least, most = PLAUSIBLE.get(key, (0.0, math.inf))
        if not least <= value <= most:
            raise self.fail(key, f"must be between {least:g} and {most:g}, found {_shown(value)}")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if key in self else None

    def optional_integer(self, key: str, *, minimum: int = 0, maximum: int = MAX_VOCAB) -> int | None:
        return self.integer(key, minimum=minimum, maximum=maximum) if key in self else None

    def boolean(self, key: str, *, default: bool | None = None) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool | np.bool_):
            raise self.fail(key, f"must be true or false, found {_shown(value)}")
        return bool(value)

    def text(self, key: str, *, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.fail(key, f"must be text, found {_shown(value)}")
        return value

    def activation(self, key: str, *, default: str) -> str:
        """The name of an activation function that transformers knows under this name."""
        name = self.text(key, default=default)
        if name not in ACTIVATIONS:
            raise self.fail(key, f"{_shown(name)} is not an activation this reads; known are {', '.join(ACTIVATIONS)}")
        return name

    def mapping(self, key: str) -> Mapping[str, Any]:
        """An object; empty if the key is absent or null."""
        value = self._value(key, {})
        if not isinstance(value, Mapping):
            raise self.fail(key, f"must be an object, found {_shown(value)}")
        return value

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """One token id or a list of them; empty if absent."""
        if key not in self:
            return ()
        value = self.data[self.prefix + key]
        ids = value if isinstance(value, list) else [value]
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
                raise self.fail(key, f"must hold token ids in 0..{vocab_size - 1}, found {_shown(value)}")
        return tuple(dict.fromkeys(ids))

    def _value(self, key: str, default: Any) -> Any:
        value = self.data.get(self.prefix + key)
        if value is not None:
            return value
        if default is None:
            raise self.fail(key, "is missing")
        return default


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
