"""The peer of `mlx_conversion`: mlx_lm's own conversion of a Hugging Face directory, nothing of ours around it.

python -m benchmarks.bare_mlx prepare MODEL HF_DIR     write MODEL in bfloat16, as models are published
python -m benchmarks.bare_mlx convert HF_DIR OUT       what is measured: 4 bits in groups of 32
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

BITS, GROUP_SIZE = 4, 32


def prepare(model: str, hf_dir: Path) -> None:
    """Write a model that is on this disk as a directory mlx_lm can load."""
    from converters.read import read_checkpoint

    read_checkpoint(model).write_hf(hf_dir, dtype="bfloat16")


def convert(hf_dir: Path, out: Path) -> None:
    """Quantize with mlx_lm's defaults but for bits and group size."""
    from mlx_lm.convert import convert as mlx_lm_convert

    mlx_lm_convert(hf_path=str(hf_dir), mlx_path=str(out), quantize=True, q_bits=BITS, q_group_size=GROUP_SIZE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, first, second in (("prepare", "MODEL", "HF_DIR"), ("convert", "HF_DIR", "OUT")):
        command = commands.add_parser(name)
        command.add_argument("source", metavar=first)
        command.add_argument("target", metavar=second, type=Path)
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if args.command == "prepare":
        prepare(args.source, args.target)
    else:
        convert(Path(args.source), args.target)


if __name__ == "__main__":
    main()
