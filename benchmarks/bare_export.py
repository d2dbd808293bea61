"""The peer of `conversion_cost`: litert-torch's own export of one float model, nothing of ours around it.

    python -m benchmarks.bare_export prepare MODEL HF_DIR     write MODEL as a Hugging Face directory
    python -m benchmarks.bare_export export HF_DIR OUT        what is measured

litert-torch 0.10.0 imports one generated module of TensorFlow's; it gets the same module from ai-edge-litert.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

PREFILL_LENGTHS = [16, 128, 512]
CACHE_LENGTH = 1280


def prepare(model: str, hf_dir: Path) -> None:
    """Write a model that is on this disk as a directory transformers can load."""
    from converters.read import read_checkpoint

    read_checkpoint(model).write_hf(hf_dir)


def export(hf_dir: Path, out: Path) -> None:
    """Lower and pack the float model with litert-torch's defaults and its lean converter."""
    from converters.targets.litert_export import stand_in_for_tensorflow

    stand_in_for_tensorflow()
    from litert_torch.generative.export_hf import export as litert_torch_export

    litert_torch_export.export(
        model=str(hf_dir),
        output_dir=str(out),
        prefill_lengths=PREFILL_LENGTHS,
        cache_length=CACHE_LENGTH,
        quantization_recipe="none",
        keep_temporary_files=True,
        experimental_lightweight_conversion=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, first, second in (("prepare", "MODEL", "HF_DIR"), ("export", "HF_DIR", "OUT")):
        command = commands.add_parser(name)
        command.add_argument("source", metavar=first)
        command.add_argument("target", metavar=second, type=Path)
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    args.target.mkdir(parents=True, exist_ok=True)
    if args.command == "prepare":
        prepare(args.source, args.target)
    else:
        export(Path(args.source), args.target)


if __name__ == "__main__":
    main()
