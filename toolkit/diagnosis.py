"""What each engine really is and uses on this machine: asked in a process of its own, because importing one may end it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from toolkit.backends import BACKENDS
from toolkit.device.profile import Device
from toolkit.target_support import why_not

_LIMIT_S = 60.0
# Each prints what the engine uses as {"uses": [...], "detail": "..."}; it runs in a new interpreter.
_LITERT = """
import json, litert_lm
litert_lm.engine._get_lib()
print(json.dumps({"uses": ["CPU"], "detail": "XNNPACK kernels; this version opens LiteRT on the CPU only"}))
"""
_MLX = """
import json, mlx.core as mx
device = str(mx.default_device())
kind = "GPU" if "gpu" in device else "CPU"
detail = "Metal" if kind == "GPU" else "this build of mlx has no GPU; quantized models are slow on it"
print(json.dumps({"uses": [kind], "detail": detail}))
"""
_ONNX = """
import json, onnxruntime, onnxruntime_genai
names = [name.removesuffix("ExecutionProvider") for name in onnxruntime.get_available_providers()]
uses = [name for name in names if name != "Azure"]
print(json.dumps({"uses": uses, "detail": "execution providers of onnxruntime " + onnxruntime.__version__}))
"""
_REFERENCE = """
import json, torch, transformers
uses = ["GPU"] if torch.cuda.is_available() else ["CPU"]
print(json.dumps({"uses": uses, "detail": "torch " + torch.__version__ + ", float32: the oracle, not for use"}))
"""


@dataclass(frozen=True)
class Engine:
    """How one engine is found: its distribution, the extra that installs it, and a program that asks it."""

    target: str
    distribution: str
    extra: str
    question: str


ENGINES: dict[str, Engine] = {
    "litert": Engine("litert", "litert-lm-api", "litert", _LITERT),
    "mlx": Engine("mlx", "mlx-lm", "mlx", _MLX),
    "onnx": Engine("onnx", "onnxruntime-genai", "onnx", _ONNX),
    "reference": Engine("huggingface", "transformers", "convert", _REFERENCE),
}


@dataclass(frozen=True)
class EngineReport:
    """One engine here.

    Args:
        name: The backend's.
        target: Bundles it opens.
        is_available: It can be opened now.
        has_backend: This version of the runtime drives it.
        version: Of its distribution or program; None when it is missing.
        uses: Processors it computes on.
        detail: What else there is to know.
        why: Why it cannot be used; empty if it can.
        fix: What to do about it; empty if nothing need be done.
    """

    name: str
    target: str
    is_available: bool
    has_backend: bool
    version: str | None
    uses: tuple[str, ...] = ()
    detail: str = ""
    why: str = ""
    fix: str = ""


def diagnose(device: Device, *, limit_s: float = _LIMIT_S) -> list[EngineReport]:
    """Every engine the runtime knows, in the order of `ENGINES`, then llama.cpp."""
    return [*(_ask(name, engine, device, limit_s) for name, engine in ENGINES.items()), _ask_llama_server(device, limit_s)]


def _ask(name: str, engine: Engine, device: Device, limit_s: float) -> EngineReport:
    version, has_backend = _version(engine.distribution), name in BACKENDS

    def unusable(why: str, fix: str) -> EngineReport:
        return EngineReport(name, engine.target, False, has_backend, version, why=why, fix=fix)

    if (why := why_not(engine.target, device)) is not None:
        return unusable(why, "use bundles for another target on this device")
    if version is None:
        return unusable(f"the package {engine.distribution} is not installed", f"pip install 'ondevice-toolkit[{engine.extra}]'")
    try:
        done = subprocess.run(
            [sys.executable, "-c", engine.question], capture_output=True, text=True, timeout=limit_s, check=False, errors="replace"
        )
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
    except subprocess.TimeoutExpired:
        return unusable(f"it did not answer within {limit_s:g} s", f"pip install --force-reinstall {engine.distribution}=={version}")
    except (OSError, ValueError, IndexError) as error:
        return unusable(str(error), f"pip install --force-reinstall {engine.distribution}=={version}")
    if done.returncode:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), f"it ended with exit code {done.returncode}")
        return unusable(last.strip()[:300], f"pip install --force-reinstall {engine.distribution}=={version}")
    return EngineReport(name, engine.target, True, has_backend, version, tuple(facts["uses"]), str(facts["detail"]))


def _ask_llama_server(device: Device, limit_s: float) -> EngineReport:
    """llama.cpp is a program on PATH, no package."""
    has_backend, found = "gguf" in BACKENDS, shutil.which("llama-server")
    if found is None:
        fix = "build llama.cpp and put llama-server on PATH (benchmarks/README.md shows how)"
        return EngineReport("gguf", "gguf", False, has_backend, None, why="llama-server is not on PATH", fix=fix)
    try:
        done = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=limit_s, check=False, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return EngineReport("gguf", "gguf", False, has_backend, None, why=str(error), fix="build llama.cpp again for this machine")
    said = (done.stderr + done.stdout).splitlines()
    version = next((line.removeprefix("version:").strip() for line in said if line.startswith("version:")), None)
    if done.returncode:
        why = f"llama-server --version ended with exit code {done.returncode}"
        return EngineReport("gguf", "gguf", False, has_backend, version, why=why, fix="build llama.cpp again for this machine")
    return EngineReport("gguf", "gguf", True, has_backend, version, ("CPU",), "what it was built for; start it to see")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
