"""The targets by name. To add one: a module with a `TARGET` and a line here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from toolkit.bundle import SPEECH_MODEL_TYPE
from toolkit.errors import BackendUnavailableError, UnsupportedModelError, UsageError

if TYPE_CHECKING:
    from converters.targets.base import Target

TARGETS: dict[str, str] = {
    "gguf": "converters.targets.gguf",
    "litert": "converters.targets.litert",
    "mlx": "converters.targets.mlx",
    "onnx": "converters.targets.onnx",
}

# targets that also take a speech model, each with a module of its own; the name of the target stays the same
SPEECH_TARGETS: dict[str, str] = {
    "litert": "converters.targets.litert_whisper",
    "onnx": "converters.targets.onnx_whisper",
}


def targets_for(model_type: str) -> list[str]:
    """Names of the targets that take an architecture. A checkpoint of it may still have something that one of them refuses."""
    return [name for name, module in sorted(TARGETS.items()) if model_type in importlib.import_module(module).MODEL_TYPES]


def other_targets(name: str, model_type: str) -> str:
    """What to do about a model that one target cannot take: the others that take its architecture."""
    *most, last = [other for other in targets_for(model_type) if other != name] or [""]
    if not last:
        return "add the family as CONTRIBUTING.md describes"
    return f"use another target: --to {', '.join(most)}{' or ' if most else ''}{last}"


def load_target(name: str, registry: Mapping[str, str] = TARGETS) -> Target:
    """Import a target on use.

    Raises:
        UsageError: No target has this name.
        BackendUnavailableError: The target exists, but a library it imports is not installed.
    """
    if name not in registry:
        raise UsageError(
            f"there is no target {name!r}", why=f"known targets are {', '.join(sorted(registry))}", fix="give one of them to --to"
        )
    try:
        module = importlib.import_module(registry[name])
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "converters", "toolkit"):
            raise
        raise BackendUnavailableError(
            f"the {name} target cannot be used here",
            why=f"it needs {missing}, which is not installed",
            fix="pip install 'ondevice-toolkit[convert]'",
        ) from error
    target: Target = module.TARGET
    return target


def suited(target: Target, model_type: str) -> Target:
    """The target itself, or its counterpart for speech models.

    Raises:
        UnsupportedModelError: The target takes no speech models.
        BackendUnavailableError: A library it imports is not installed.
    """
    if model_type != SPEECH_MODEL_TYPE:
        return target
    if target.name not in SPEECH_TARGETS:
        raise UnsupportedModelError(
            f"a Whisper model cannot be converted to {target.name}",
            why=f"speech models go to {', '.join(sorted(SPEECH_TARGETS))}",
            fix=f"use --to {','.join(sorted(SPEECH_TARGETS))}",
        )
    return load_target(target.name, SPEECH_TARGETS)
