"""Chips beside the CPU that an engine could compute on. Found by what their drivers leave in /dev, /proc and /sys; nothing is opened."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from toolkit.device.isa import machine_name
from toolkit.free_memory import ROOT, read_lines


@dataclass(frozen=True)
class Accelerator:
    """`kind` is "gpu" or "npu"; `name` says whose, as its driver tells it."""

    kind: str
    name: str


# where a driver shows itself -> what it drives; a pattern may match several devices, which then count once
_NODES: tuple[tuple[str, Accelerator], ...] = (
    ("proc/driver/nvidia/version", Accelerator("gpu", "NVIDIA")),
    ("dev/kfd", Accelerator("gpu", "AMD (ROCm)")),
    ("dev/kgsl-3d0", Accelerator("gpu", "Adreno")),
    ("dev/mali0", Accelerator("gpu", "Mali")),
    ("dev/nvhost-gpu", Accelerator("gpu", "NVIDIA Tegra")),
    ("dev/apex_*", Accelerator("npu", "Coral Edge TPU")),
    ("dev/hailo*", Accelerator("npu", "Hailo")),
    ("dev/rknpu*", Accelerator("npu", "Rockchip")),
    ("dev/edgetpu*", Accelerator("npu", "Google Edge TPU")),
    ("dev/adsprpc-smd*", Accelerator("npu", "Hexagon")),
)
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel", "0x13b5": "Mali", "0x5143": "Adreno", "0x106b": "Apple"}


def probe_accelerators(root: Path = ROOT) -> tuple[Accelerator, ...]:
    """What is here, each once; whether an engine can use it is the engine's to say (`toolkit doctor`)."""
    if root == ROOT and sys.platform in ("darwin", "ios"):
        return (Accelerator("gpu", "Apple (Metal)"), Accelerator("npu", "Apple Neural Engine")) if machine_name() == "aarch64" else ()
    found = [accelerator for pattern, accelerator in _NODES if any(root.glob(pattern))]
    found += [Accelerator("gpu", name) for name in _names(root, "sys/class/drm/renderD*/device")]
    found += [Accelerator("npu", name) for name in _names(root, "sys/class/accel/accel*/device")]
    return tuple(dict.fromkeys(found))


def _names(root: Path, pattern: str) -> list[str]:
    """Vendors of the devices whose folders match."""
    names = []
    for folder in sorted(root.glob(pattern)):
        vendor = "".join(read_lines(folder / "vendor")[:1]).strip().lower()
        driver = next((line.removeprefix("DRIVER=") for line in read_lines(folder / "uevent") if line.startswith("DRIVER=")), "")
        if vendor or driver:
            names.append(_VENDORS.get(vendor) or driver or f"vendor {vendor}")
    return names
