"""Figures of macOS and iOS that only their C library tells, asked through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.free_memory import FreeMemory

Library = Callable[[], Any]


def _system_library() -> Any:
    return ctypes.CDLL(None)


def sysctl_integer(name: str, *, library: Library = _system_library) -> int | None:
    """An integer of sysctl(3), such as `hw.memsize` (bytes) or `hw.optional.arm.FEAT_LSE` (0 or 1); None where there is none."""
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    try:
        ask = library().sysctlbyname
    except (OSError, AttributeError):
        return None
    return value.value if ask(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)) == 0 else None


def sysctl_text(name: str, *, library: Library = _system_library) -> str | None:
    """A string of sysctl(3), such as `machdep.cpu.brand_string`; None where there is none."""
    value, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
    try:
        ask = library().sysctlbyname
    except (OSError, AttributeError):
        return None
    is_told = ask(name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0)) == 0
    return value.value.decode("utf-8", errors="replace") if is_told else None


def free_memory_of_process(root: Path, *, library: Library = _system_library) -> FreeMemory | None:
    """iOS: what `os_proc_available_memory` leaves until the system ends this process. macOS: the free share of its RAM.

    macOS has no such call for a process; `kern.memorystatus_level` is the percentage its memory pressure is judged by.
    """
    try:
        ask = library().os_proc_available_memory
    except (OSError, AttributeError):
        ask = None
    if ask is not None:
        ask.restype = ctypes.c_size_t
        if (size := int(ask())) > 0:
            return FreeMemory(size, "the system's limit for this app")
    total, percent = (sysctl_integer(name, library=library) for name in ("hw.memsize", "kern.memorystatus_level"))
    return None if total is None or percent is None else FreeMemory(total * percent // 100, "free memory")
