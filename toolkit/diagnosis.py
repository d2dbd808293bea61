"""What each engine really is and uses on this machine: asked in a process of its own, because importing one may end it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

from toolkit.backends.llama_server import DISTRIBUTION, find_program
from toolkit.device.profile import Device
from toolkit.errors import UsageError
from toolkit.installed import UNKNOWN, installed_version
from toolkit.target_support import why_not

_LIMIT_S = 60.0
# Asked in a new interpreter: prints the fields of `toolkit.backends.base.BackendFacts` as its last line, or `why` and `fix`.
_QUESTION = """
import json, sys
from dataclasses import asdict
from toolkit.backends import load_backend
from toolkit.errors import ToolkitError
try:
    facts = asdict(load_backend({name!r}).probe())
except ToolkitError as error:
    facts = {{"why": error.why or error.what, "fix": error.fix}}
print(json.dumps(facts))
"""
# In an interpreter that finds what this one finds.
_HERE = "import sys; sys.path[:] = sys.argv[1].split(sys.argv[2])\n"


@dataclass(frozen=True)
class Engine:
    """How one engine is found: its distribution, the extra that installs it, and a program that asks it."""

    target: str
    distribution: str
    extra: str
    question: str


ENGINES: dict[str, Engine] = {
    "litert": Engine("litert", "litert-lm-api", "litert", _QUESTION.format(name="litert")),
    "mlx": Engine("mlx", "mlx-lm", "mlx", _QUESTION.format(name="mlx")),
    "onnx": Engine("onnx", "onnxruntime-genai", "onnx", _QUESTION.format(name="onnx")),
    "reference": Engine("mlx", "transformers", "convert", _QUESTION.format(name="reference")),
    "gguf": Engine("gguf", DISTRIBUTION, "gguf", _QUESTION.format(name="gguf")),
}


@dataclass(frozen=True)
class EngineReport:
    """One engine here.

    Args:
        name: The backend's.
        target: Bundles it opens.
        is_available: It can be opened now.
        version: Of its distribution or program; None when it is missing.
        uses: Processors it computes on.
        unused: Accelerators of this device that it leaves alone.
        detail: What else there is to know.
        capabilities: What its sessions can do beside answering, by name.
        why: Why it cannot be used; empty if it can.
        fix: What to do about it; empty if nothing need be done.
    """

    name: str
    target: str
    is_available: bool
    version: str | None
    uses: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    detail: str = ""
    capabilities: dict[str, bool] = field(default_factory=dict)
    why: str = ""
    fix: str = ""


def diagnose(device: Device, *, limit_s: float = _LIMIT_S) -> list[EngineReport]:
    """Every engine the runtime knows, in the order of `ENGINES`."""
    return [(_ask_llama_cpp if name == "gguf" else _ask)(name, engine, device, limit_s) for name, engine in ENGINES.items()]


def _ask(name: str, engine: Engine, device: Device, limit_s: float) -> EngineReport:
    version = _version(engine.distribution)
    if (why := why_not(engine.target, device)) is not None:
        return _unusable(name, engine, version, why, "use bundles for another target on this device")
    if version is None:
        why = f"the package {engine.distribution} is not installed"
        return _unusable(name, engine, None, why, f"pip install 'ondevice-toolkit[{engine.extra}]'")
    return _asked(name, engine, version, device, limit_s, fix=f"pip install --force-reinstall {engine.distribution}=={version}")


def _ask_llama_cpp(name: str, engine: Engine, device: Device, limit_s: float) -> EngineReport:
    """It is a program on PATH or a wheel, and which of them is the backend's to say."""
    try:
        program = find_program()
    except UsageError as error:
        return _unusable(name, engine, None, f"{error.what}: {error.why}", error.fix)
    version = _version(engine.distribution)
    if program is None and version is None:
        why = f"llama-server is not on PATH, and the package {engine.distribution} is not installed"
        return _unusable(
            name, engine, None, why, f"pip install 'ondevice-toolkit[{engine.extra}]', or build llama.cpp and put llama-server on PATH"
        )
    wheel = f"pip install --force-reinstall {engine.distribution}=={version}"
    return _asked(name, engine, version, device, limit_s, fix=wheel if program is None else f"build llama.cpp again: {program}")


def _asked(name: str, engine: Engine, version: str | None, device: Device, limit_s: float, *, fix: str) -> EngineReport:
    paths = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", _HERE + engine.question, paths, os.pathsep]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False, errors="replace")
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
    except subprocess.TimeoutExpired:
        return _unusable(name, engine, version, f"it did not answer within {limit_s:g} s", fix)
    except (OSError, ValueError, IndexError) as error:
        return _unusable(name, engine, version, str(error), fix)
    if done.returncode:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), f"it ended with exit code {done.returncode}")
        return _unusable(name, engine, version, last.strip()[:300], fix)
    if "why" in facts:
        return _unusable(name, engine, version, str(facts["why"]), str(facts["fix"]))
    uses = tuple(str(kind) for kind in facts["uses"])
    return EngineReport(
        name,
        engine.target,
        True,
        str(facts.get("version", version)),
        uses=uses,
        unused=tuple(f"{each.kind.upper()} {each.name}" for each in device.accelerators if each.kind.upper() not in uses),
        detail=str(facts["detail"]),
        capabilities=dict(facts.get("capabilities", {})),
    )


def _unusable(name: str, engine: Engine, version: str | None, why: str, fix: str) -> EngineReport:
    return EngineReport(name, engine.target, False, version, why=why, fix=fix)


def _version(distribution: str) -> str | None:
    version = installed_version(distribution)
    return None if version == UNKNOWN else version
