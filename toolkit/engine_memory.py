"""What each target's engine does with memory: constants for bundles that were not measured when they were made.

Where they come from: docs/guides/memory.md. A bundle's own measurements replace all but the KV cache's.
"""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 2**20
_ANY = float("inf")


@dataclass(frozen=True)
class EngineMemory:
    """Constants of one engine.

    Args:
        base_bytes: Python, the engine's library and an engine without a model.
        mapped_base_bytes: The part of it that is files.
        weights_factors: Resident bytes for each byte of stored weights: (bits per weight up to which it holds, factor).
        maps_weights: The stored bytes are files to the system; else they are copied.
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
    weights_factors: tuple[tuple[float, float], ...]
    maps_weights: bool
    kv_bytes_per_value: float
    keeps_window: bool
    window_extra_tokens: int = 0
    logit_rows: int = 1
    score_buffers: int = 1
    tokenizer_bytes_per_token: int = 140
    packs_on_first_start: bool = False
    prefill_chunk: int = 512

    def weights_factor(self, bits_per_weight: float) -> float:
        """Resident bytes for each byte of weights stored in so many bits."""
        return next(factor for bits, factor in self.weights_factors if bits_per_weight <= bits)


_ENGINES: dict[str, EngineMemory] = {
    "litert": EngineMemory(
        base_bytes=156 * _MIB,
        mapped_base_bytes=82 * _MIB,
        weights_factors=((_ANY, 1.0),),
        maps_weights=True,
        kv_bytes_per_value=4,
        keeps_window=False,
        logit_rows=16,
        score_buffers=3,
        packs_on_first_start=True,
        prefill_chunk=128,
    ),
    # transformers comes with mlx_lm, and PyTorch with that where it is installed: most of the base.
    "mlx": EngineMemory(
        base_bytes=380 * _MIB,
        mapped_base_bytes=94 * _MIB,
        weights_factors=((_ANY, 1.05),),
        maps_weights=False,
        kv_bytes_per_value=2,
        keeps_window=True,
    ),
    # Weights are packed into a copy; offsets of codes take floats besides; float16 weights are computed in float32.
    "onnx": EngineMemory(
        base_bytes=70 * _MIB,
        mapped_base_bytes=50 * _MIB,
        weights_factors=((4.75, 1.1), (8.0, 1.3), (9.5, 1.1), (16.5, 2.5), (_ANY, 1.02)),
        maps_weights=False,
        kv_bytes_per_value=4,
        keeps_window=False,
        logit_rows=310,
        prefill_chunk=32,
    ),
    # Blocks of 4 bits without offsets (Q4_0) are held a second time, repacked for the processor; flash attention keeps no scores.
    "gguf": EngineMemory(
        base_bytes=75 * _MIB,
        mapped_base_bytes=24 * _MIB,
        weights_factors=((4.75, 2.0), (_ANY, 1.0)),
        maps_weights=True,
        kv_bytes_per_value=2,
        keeps_window=True,
        window_extra_tokens=512,
        score_buffers=0,
    ),
}
# A target that is not known is planned for like the engine that takes most.
_UNKNOWN = EngineMemory(
    base_bytes=200 * _MIB,
    mapped_base_bytes=60 * _MIB,
    weights_factors=((_ANY, 2.0),),
    maps_weights=False,
    kv_bytes_per_value=4,
    keeps_window=False,
)


def engine_memory(target: str) -> EngineMemory:
    """The constants of the engine that runs bundles of `target`."""
    return _ENGINES.get(target, _UNKNOWN)
