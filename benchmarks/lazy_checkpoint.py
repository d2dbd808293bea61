"""A checkpoint of any size that is nowhere: each block of weights is drawn when it is asked for, and forgotten.

python -m benchmarks.lazy_checkpoint OUT [--layers 32]     convert it to MLX int4-g32, unverified, into OUT
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from converters.architectures import family_of
from converters.checkpoint import Checkpoint, QuantizationInfo, TokenizerFiles
from converters.parts import default_parts
from converters.pipeline import convert
from converters.request import ConvertRequest, ConvertResult
from converters.spec import ModelSpec, NormSpec, RopeSpec
from converters.stored_blocks import FloatStored
from toolkit.manifest import LicenseRecord, SourceRecord

N_LAYERS = 32  # 2.08 billion parameters
BLOCK_WEIGHTS = 2**22
RECIPE = "int4-g32"


def lazy_spec(n_layers: int = N_LAYERS) -> ModelSpec:
    """A Llama of 2048 wide layers, 61 million weights each, and a tied table of 134 million."""
    return ModelSpec(
        model_type="llama",
        architecture="LlamaForCausalLM",
        n_layers=n_layers,
        hidden_size=2048,
        intermediate_size=8192,
        n_heads=32,
        n_kv_heads=8,
        head_dim=64,
        vocab_size=65536,
        max_context_length=4096,
        layer_types=("full",) * n_layers,
        rope={"full": RopeSpec(500000.0)},
        norm=NormSpec(1e-5),
        activation="silu",
        tie_embeddings=True,
        eos_token_ids=(2,),
    )


class LazyTensors(FloatStored):
    """A TensorSource of normal numbers, the same for a name each time."""

    def __init__(self, spec: ModelSpec) -> None:
        self._shapes = family_of(spec.model_type).tensor_shapes(spec)

    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def load(self, name: str) -> np.ndarray:
        return np.concatenate(list(self.blocks(name)))

    def blocks(self, name: str) -> Iterator[np.ndarray]:
        random = np.random.default_rng([*name.encode()])
        n_rows, *rest = self._shapes[name]
        step = max(1, BLOCK_WEIGHTS // math.prod(rest))
        for start in range(0, n_rows, step):
            block = random.standard_normal((min(step, n_rows - start), *rest), dtype=np.float32)
            block *= np.float32(0.02)
            yield block


def lazy_checkpoint(n_layers: int = N_LAYERS, spec: ModelSpec | None = None) -> Checkpoint:
    spec = spec or lazy_spec(n_layers)
    return Checkpoint(
        name="lazy",
        spec=spec,
        source=SourceRecord("lazy", None, {}),
        license=LicenseRecord("Apache-2.0"),
        tensors=LazyTensors(spec),
        tokenizer=TokenizerFiles("bpe-byte-level", b"{}", None, False),
        chat_template=None,
        quantization=QuantizationInfo("F32", 32.0),
        content_hash=hashlib.sha256(repr(spec).encode()).hexdigest(),
    )


def convert_lazily(checkpoint: Checkpoint, out: Path) -> ConvertResult:
    """`convert --to mlx --recipe int4-g32 --no-verify`, on a checkpoint that is no file."""
    parts = replace(default_parts(), read_checkpoint=lambda source, name, accept_license: checkpoint)
    return convert(ConvertRequest("lazy", targets=("mlx",), recipes=(RECIPE,), out=out, verify=False, force=True), parts=parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", type=Path)
    parser.add_argument("--layers", type=int, default=N_LAYERS, metavar="N", help=f"default: {N_LAYERS}, 2.08 billion parameters")
    args = parser.parse_args()
    result = convert_lazily(lazy_checkpoint(args.layers), args.out)
    for error in result.errors:
        print(error, file=sys.stderr)
    return result.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
