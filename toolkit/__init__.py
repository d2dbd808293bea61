"""The runtime: a bundle in, tokens out, inside a budget.

    from toolkit import Bundle, Engine

    bundle = Bundle.open("bundles/smollm2-135m-instruct-litert-int8")
    with Engine.open(bundle) as engine:
        for piece in engine.session().send("What is the capital of France?"):
            print(piece.text, end="")

Importing this package loads nothing but itself: every name below is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # the name is what type checkers look for; importing `typing` for it would be a tenth of the whole cost
if TYPE_CHECKING:
    from typing import Any

    from toolkit.budget import Budget
    from toolkit.bundle import Bundle
    from toolkit.engine import Engine
    from toolkit.errors import (
        BackendUnavailableError,
        BudgetError,
        EngineError,
        FidelityError,
        FormatError,
        ToolkitError,
        UnsupportedModelError,
        UsageError,
    )
    from toolkit.governor import Governor
    from toolkit.manifest import Manifest
    from toolkit.metrics import Metrics
    from toolkit.session import FinishReason, Message, Piece, Session
    from toolkit.worker_death import EngineCrashed

__all__ = [
    "BackendUnavailableError",
    "Budget",
    "BudgetError",
    "Bundle",
    "Engine",
    "EngineCrashed",
    "EngineError",
    "FidelityError",
    "FinishReason",
    "FormatError",
    "Governor",
    "Manifest",
    "Message",
    "Metrics",
    "Piece",
    "Session",
    "ToolkitError",
    "UnsupportedModelError",
    "UsageError",
]

_MODULES = {
    "toolkit.budget": ("Budget",),
    "toolkit.bundle": ("Bundle",),
    "toolkit.engine": ("Engine",),
    "toolkit.errors": (
        "BackendUnavailableError",
        "BudgetError",
        "EngineError",
        "FidelityError",
        "FormatError",
        "ToolkitError",
        "UnsupportedModelError",
        "UsageError",
    ),
    "toolkit.governor": ("Governor",),
    "toolkit.manifest": ("Manifest",),
    "toolkit.metrics": ("Metrics",),
    "toolkit.session": ("FinishReason", "Message", "Piece", "Session"),
    "toolkit.worker_death": ("EngineCrashed",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'toolkit' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
