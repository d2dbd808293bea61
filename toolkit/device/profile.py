"""A device in figures: what `plan` needs to say whether a bundle fits and how it should run."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from toolkit.device.accelerators import Accelerator, probe_accelerators
from toolkit.device.cores import Cores, probe_cores
from toolkit.device.isa import cpu_model, machine_name, probe_isa
from toolkit.errors import UsageError
from toolkit.free_memory import ROOT, FreeMemory, free_address_space, free_memory, total_memory_bytes


@dataclass(frozen=True)
class Device:
    """What is known of a device; None where nothing tells.

    Args:
        name: For people: a processor's or a phone's.
        system: "linux", "android", "darwin", "ios" or "windows".
        machine: "x86_64", "aarch64" or another processor family.
        total_memory_bytes: RAM.
        free_memory: What a process may still take, and which limit says so.
        free_address_space: The same of virtual memory, where it is limited.
        cores: CPUs.
        isa: Instruction sets, names of `toolkit.device.isa.NAMES`.
        accelerators: GPUs and NPUs.
        is_this_one: Probed here, so that files of this machine (an engine's cache) say something about it.
    """

    name: str
    system: str
    machine: str
    total_memory_bytes: int | None
    free_memory: FreeMemory | None
    cores: Cores
    isa: tuple[str, ...] | None = None
    accelerators: tuple[Accelerator, ...] = ()
    free_address_space: FreeMemory | None = None
    is_this_one: bool = False

    def with_memory(self, free_bytes: int, limited_by: str) -> Device:
        """A device like this one with another amount of memory to plan for."""
        total = max(self.total_memory_bytes or 0, free_bytes)
        memory = FreeMemory(free_bytes, limited_by)
        return replace(self, total_memory_bytes=total, free_memory=memory, free_address_space=None, is_this_one=False)

    def with_cores(self, n_cores: int) -> Device:
        """A device like this one with `n_cores` cores, all alike.

        Raises:
            UsageError: That is not 1 to 1024.
        """
        if not 1 <= n_cores <= 1024:
            raise UsageError(f"{n_cores} cores cannot be planned for", why="a device has 1 to 1024", fix="use --cores 4")
        return replace(self, cores=Cores(n_cores, n_cores, n_cores))

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        data = asdict(self)
        data["free_memory_bytes"] = None if self.free_memory is None else self.free_memory.bytes
        data["memory_limited_by"] = None if self.free_memory is None else self.free_memory.limited_by
        data["best_threads"] = self.cores.best_threads
        for name in ("free_memory", "free_address_space"):
            del data[name]
        return data


def system_name() -> str:
    """The operating system in one of the five words of `Device.system`."""
    if os.environ.get("ANDROID_PRIVATE") or hasattr(sys, "getandroidapilevel"):
        return "android"
    return {"win32": "windows"}.get(sys.platform, sys.platform)


def probe_device(root: Path = ROOT) -> Device:
    """Ask this machine; a few milliseconds, nothing is loaded.

    Args:
        root: Where `proc`, `sys` and `dev` are; a test gives a folder of its own.
    """
    return Device(
        name=cpu_model(root),
        system=system_name(),
        machine=machine_name(),
        total_memory_bytes=total_memory_bytes(root),
        free_memory=free_memory(root),
        cores=probe_cores(root),
        isa=probe_isa(root),
        accelerators=probe_accelerators(root),
        free_address_space=free_address_space(root),
        is_this_one=root == ROOT,
    )
