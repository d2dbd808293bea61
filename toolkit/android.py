"""Figures of Android that only its Java side tells, asked through pyjnius."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolkit.free_memory import FreeMemory


def app_context() -> Any | None:
    """The app's activity, or its service where it runs in one; None outside of an app."""
    try:
        from jnius import autoclass
    except ImportError:
        return None
    for name, attribute in (("org.kivy.android.PythonActivity", "mActivity"), ("org.kivy.android.PythonService", "mService")):
        try:
            context = getattr(autoclass(name), attribute)
        except Exception:  # pyjnius raises its own JavaException for a class the app does not have
            continue
        if context is not None:
            return context
    return None


def free_memory_of_app(root: Path) -> FreeMemory | None:
    """`ActivityManager.MemoryInfo`: what is available above the threshold where Android begins to kill; None outside of an app."""
    if (context := app_context()) is None:
        return None
    from jnius import autoclass

    info = autoclass("android.app.ActivityManager$MemoryInfo")()
    context.getSystemService("activity").getMemoryInfo(info)
    return FreeMemory(max(0, int(info.availMem) - int(info.threshold)), "Android's low-memory threshold")
