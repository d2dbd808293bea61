"""How much memory a bundle takes to run: arithmetic on its manifest, corrected by what was measured when it was made.

The model and its figures: docs/guides/memory.md. Fields of the manifest: docs/formats/memory.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from toolkit.calibration import Calibration, read_calibration
from toolkit.engine_memory import EngineMemory, engine_memory
from toolkit.manifest import Manifest

_MOST_LAYERS = 100_000
_MOST_WIDTH = 2**31


@dataclass(frozen=True)
class MemoryEstimate:
    """Peak resident memory of the process that runs an engine with one session, in parts.

    Args:
        weights_bytes: Quantized weights, mapped or copied as the engine does it.
        kv_cache_bytes: Keys and values of a full context.
        activations_bytes: What prefill and decode compute in.
        tokenizer_bytes: Its tables in memory.
        engine_bytes: Interpreter, the engine's library, graphs.
        packing_bytes: What the first start takes besides, while it packs weights for this processor; else 0.
        mapped_bytes: The part of the sum that is files, which the system can drop and read again.
        address_space_bytes: Virtual memory, where it was measured.
        is_calibrated: Corrected by measurements of this very bundle; else arithmetic alone.
    """

    weights_bytes: int
    kv_cache_bytes: int
    activations_bytes: int
    tokenizer_bytes: int
    engine_bytes: int
    packing_bytes: int
    mapped_bytes: int
    address_space_bytes: int | None
    is_calibrated: bool

    @property
    def peak_rss_bytes(self) -> int:
        """All parts together."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, int]:
        """Name -> bytes; they add up to the peak."""
        names = ("weights_bytes", "kv_cache_bytes", "activations_bytes", "tokenizer_bytes", "engine_bytes", "packing_bytes")
        return {name: getattr(self, name) for name in names}


def estimate_memory(manifest: Manifest, *, context_length: int, is_first_start: bool = True) -> MemoryEstimate:
    """What opening a bundle and filling its context will take. Arithmetic: no engine is needed.

    Args:
        manifest: The bundle's.
        context_length: Tokens of the KV cache, all of them used.
        is_first_start: Whether the engine has not packed these weights for this processor yet.

    Raises:
        FormatError: The manifest's measurements contradict each other.
    """
    engine = engine_memory(manifest.target)
    kv = kv_cache_bytes(manifest, context_length, engine=engine)
    plain = _arithmetic(manifest, engine, context_length, kv)
    calibration = read_calibration(manifest)
    measured = plain if calibration is None else _calibrated(manifest, engine, plain, calibration, context_length)
    return measured if is_first_start else replace(measured, packing_bytes=0)


def kv_cache_bytes(manifest: Manifest, context_length: int, *, engine: EngineMemory) -> int:
    """Bytes of the KV cache: 2 * n_kv_heads * head_dim values a token and layer (keys and values).

    A sliding layer holds its window only where the engine keeps a ring buffer; LiteRT keeps every token of every layer. Where
    layers differ otherwise (wider heads, shared keys and values) the converter's own sum is taken, windows not counted.
    """
    width = engine.kv_bytes_per_value
    values = _values_per_layer(manifest.spec)
    layers = manifest.spec.get("layer_types")
    is_uneven = any(whole(manifest.spec, name) for name in ("full_head_dim", "n_full_kv_heads", "n_kv_shared_layers"))
    if values is None or is_uneven or not isinstance(layers, list | tuple) or len(layers) > _MOST_LAYERS:
        per_token = whole(manifest.memory, "kv_cache_bytes_per_token") or 0
        return per_token * context_length
    window = whole(manifest.spec, "sliding_window")
    sliding = context_length
    if engine.keeps_window and window is not None:
        sliding = min(context_length, window + engine.window_extra_tokens)
    n_sliding = sum(1 for layer in layers if layer == "sliding")
    return int(values * width * (n_sliding * sliding + (len(layers) - n_sliding) * context_length))


def weights_bytes(manifest: Manifest) -> int:
    """Bytes of the weights as they are stored; where the manifest does not tell, of all files."""
    return whole(manifest.memory, "weights_bytes") or sum(record.bytes for record in manifest.files)


def whole(data: dict[str, Any], name: str) -> int | None:
    """A whole number of 0 or more and a size that exists; None where it is anything else."""
    value = data.get(name)
    is_whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**50
    return value if is_whole else None


def _values_per_layer(spec: dict[str, Any]) -> int | None:
    n_kv_heads, head_dim = whole(spec, "n_kv_heads"), whole(spec, "head_dim")
    if not n_kv_heads or not head_dim or n_kv_heads * head_dim > _MOST_WIDTH:
        return None
    return 2 * n_kv_heads * head_dim


def _arithmetic(manifest: Manifest, engine: EngineMemory, context_length: int, kv: int) -> MemoryEstimate:
    stored, spec = weights_bytes(manifest), manifest.spec
    vocab_size, n_heads = whole(spec, "vocab_size") or 0, whole(spec, "n_heads") or 0
    chunk = min(prefill_chunk(manifest), context_length)
    activations = 4 * (engine.logit_rows * vocab_size + engine.score_buffers * n_heads * chunk * context_length)
    weights = int(stored * engine.weights_factor(manifest.bits_per_weight))
    tokenizer = engine.tokenizer_bytes_per_token * vocab_size
    packing = _table_bytes(manifest, stored) if engine.packs_on_first_start else 0
    mapped = engine.mapped_base_bytes + (stored if engine.maps_weights else 0)
    return MemoryEstimate(weights, kv, activations, tokenizer, engine.base_bytes, packing, mapped, None, is_calibrated=False)


def _table_bytes(manifest: Manifest, stored: int) -> int:
    """The embedding table as stored: vocab_size * hidden_size weights at the bundle's bits per weight."""
    n_weights = (whole(manifest.spec, "vocab_size") or 0) * (whole(manifest.spec, "hidden_size") or 0)
    return min(stored, int(n_weights * manifest.bits_per_weight / 8))


def prefill_chunk(manifest: Manifest) -> int:
    """Tokens of the longest prompt chunk the bundle is built for, or the engine's default."""
    as_written = manifest.recipe.get("as_written")
    lengths = as_written.get("prefill_lengths") if isinstance(as_written, dict) else None
    given = [length for length in lengths if isinstance(length, int) and 0 < length < 2**20] if isinstance(lengths, list) else []
    return max(given, default=engine_memory(manifest.target).prefill_chunk)


def _calibrated(
    manifest: Manifest, engine: EngineMemory, plain: MemoryEstimate, calibration: Calibration, context_length: int
) -> MemoryEstimate:
    """The measured line through two contexts, its KV cache taken out and put back by arithmetic, shared out among the parts."""

    def without_kv(length: int, measured: int) -> int:
        return measured - kv_cache_bytes(manifest, length, engine=engine)

    rest = calibration.peak(context_length, without_kv)
    fixed = max(0, calibration.peak(0, without_kv))
    weights = min(plain.weights_bytes, fixed)
    tokenizer = min(plain.tokenizer_bytes, fixed - weights)
    return MemoryEstimate(
        weights_bytes=weights,
        kv_cache_bytes=plain.kv_cache_bytes,
        activations_bytes=max(0, rest - fixed),
        tokenizer_bytes=tokenizer,
        engine_bytes=fixed - weights - tokenizer,
        packing_bytes=calibration.packing_bytes,
        mapped_bytes=calibration.mapped(context_length),
        address_space_bytes=calibration.address_space(context_length),
        is_calibrated=True,
    )
