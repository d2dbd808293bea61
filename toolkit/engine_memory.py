"""What each target's engine does with memory: constants for bundles that were not measured when they were made.

Where they come from: docs/guides/memory.md. A bundle's own measurements replace all but the KV cache's.
"""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 2**20


@dataclass(frozen=True)
class EngineMemory:
    """Constants of one engine.

    Args:
        base_bytes: Python, the engine's library and an engine without a model.
        mapped_base_bytes: The part of it that is files.
        weights_factor: Resident bytes for each byte of stored weights.
        maps_weights: They are files to the system; else they are copied.
        kv_bytes_per_value: Of the KV cache: 4 for float32, 2 for float16.
        keeps_window: A sliding layer holds its window only.
        window_extra_tokens: Tokens it holds besides: a prompt chunk.
        logit_rows: Rows of vocab_size floats it keeps.
        score_buffers: Buffers of n_heads * chunk * context floats it keeps while it prefills.
        tokenizer_bytes_per_token: Of its tables.
        packs_on_first_start: The first start holds the packed embedding table twice.
        prefill_chunk: Prompt tokens it takes at once.
    """

    base_bytes: int
    mapped_base_bytes: int
    weights_factor: float
    maps_weights: bool
    kv_bytes_per_value: float
    keeps_window: bool
    window_extra_tokens: int = 0
    logit_rows: int = 1
    score_buffers: int = 1
    tokenizer_bytes_per_token: int = 140
    packs_on_first_start: bool = False
    prefill_chunk: int = 512


_ENGINES: dict[str, EngineMemory] = {
    "litert": EngineMemory(
        base_bytes=156 * _MIB,
        mapped_base_bytes=82 * _MIB,
        weights_factor=1.0,
        maps_weights=True,
        kv_bytes_per_value=4,
        keeps_window=False,
        logit_rows=16,
        score_buffers=3,
        packs_on_first_start=True,
        prefill_chunk=128,
    ),
    "mlx": EngineMemory(
        base_bytes=120 * _MIB, mapped_base_bytes=60 * _MIB, weights_factor=1.05, maps_weights=False, kv_bytes_per_value=2, keeps_window=True
    ),
    "onnx": EngineMemory(
        base_bytes=110 * _MIB, mapped_base_bytes=60 * _MIB, weights_factor=2.9, maps_weights=False, kv_bytes_per_value=4, keeps_window=False
    ),
    "gguf": EngineMemory(
        base_bytes=50 * _MIB,
        mapped_base_bytes=20 * _MIB,
        weights_factor=1.0,
        maps_weights=True,
        kv_bytes_per_value=2,
        keeps_window=True,
        window_extra_tokens=512,
    ),
}
# A target that is not known is planned for like the engine that takes most.
_UNKNOWN = EngineMemory(
    base_bytes=200 * _MIB, mapped_base_bytes=60 * _MIB, weights_factor=2.0, maps_weights=False, kv_bytes_per_value=4, keeps_window=False
)


def engine_memory(target: str) -> EngineMemory:
    """The constants of the engine that runs bundles of `target`."""
    return _ENGINES.get(target, _UNKNOWN)
