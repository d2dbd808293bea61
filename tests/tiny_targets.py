"""The model of `tests.tiny_bundle` as bundles for the other targets, converted once and kept in the user's cache.

Run as a script it converts into a folder; imported, `tiny_targets` returns that folder: `checkpoint/`, and a bundle
`tiny-TARGET-fp32` for each target whose packages are here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path

TARGETS = {"onnx": "onnxruntime_genai", "mlx": "mlx_lm", "gguf": "gguf"}
CONTEXT_LENGTH = 512
_ROOT = Path(__file__).parents[1]


def tiny_targets() -> Path:
    """The folder, made on first use (half a minute) and again when the converter's code or its packages change."""
    from toolkit.cache import cache_directory, locked

    code = sorted((_ROOT / "converters").rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in [*code, Path(__file__), _ROOT / "tests" / "tiny_bundle.py"]))
    digest.update(" ".join(sorted(f"{name}={_version(name)}" for name in ("onnxruntime-genai", "mlx-lm", "gguf", "transformers"))).encode())
    kept = cache_directory("tests", "targets") / digest.hexdigest()[:16]
    with locked(kept.with_suffix(".lock")):
        if not kept.exists():
            building = kept.with_suffix(".building")
            shutil.rmtree(building, ignore_errors=True)
            subprocess.run([sys.executable, __file__, str(building)], check=True, stdout=subprocess.DEVNULL, cwd=_ROOT)
            os.replace(building, kept)
    return kept


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "missing"


def _convert(folder: Path) -> None:
    from converters.pipeline import convert
    from converters.request import ConvertRequest
    from tests.tiny_bundle import _write_checkpoint

    source = folder / "tiny"
    source.mkdir()
    _write_checkpoint(source)
    (source / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    present = tuple(target for target, module in TARGETS.items() if util.find_spec(module) is not None)
    options = {"recipes": ("fp32", "int8"), "context_length": CONTEXT_LENGTH, "verify": False}
    result = convert(ConvertRequest(str(source), targets=present, out=folder, **options))
    assert result.exit_code == 0, result.as_dict()


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path.insert(0, str(_ROOT))
    place = Path(sys.argv[1])
    place.mkdir(parents=True)
    _convert(place)
