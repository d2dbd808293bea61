"""Instruction sets that decide which engine runs here and how fast, under names that do not depend on the system."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from toolkit.free_memory import ROOT, read_lines

# our name -> the kernel's word in /proc/cpuinfo, Apple's sysctl name
ARM: dict[str, tuple[str, str]] = {
    "neon": ("asimd", "hw.optional.AdvSIMD"),
    "lse": ("atomics", "hw.optional.arm.FEAT_LSE"),
    "fp16": ("asimdhp", "hw.optional.arm.FEAT_FP16"),
    "dotprod": ("asimddp", "hw.optional.arm.FEAT_DotProd"),
    "i8mm": ("i8mm", "hw.optional.arm.FEAT_I8MM"),
    "bf16": ("bf16", "hw.optional.arm.FEAT_BF16"),
    "sve": ("sve", ""),
    "sme": ("sme", "hw.optional.arm.FEAT_SME"),
}
X86: dict[str, tuple[str, str]] = {
    "avx": ("avx", "hw.optional.avx1_0"),
    "avx2": ("avx2", "hw.optional.avx2_0"),
    "fma": ("fma", "hw.optional.fma"),
    "f16c": ("f16c", "hw.optional.f16c"),
    "avx512": ("avx512f", "hw.optional.avx512f"),
    "avx-vnni": ("avx_vnni", ""),
    "avx512-vnni": ("avx512_vnni", "hw.optional.avx512vnni"),
    "amx-int8": ("amx_int8", ""),
}
NAMES = (*ARM, *X86)
_MACHINES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64", "armv8l": "aarch64"}


def machine_name(machine: str | None = None) -> str:
    """`x86_64`, `aarch64` or the platform's own word, spelled one way on every system."""
    name = (machine or platform.machine()).lower()
    return _MACHINES.get(name, name)


def probe_isa(root: Path = ROOT, *, machine: str | None = None) -> tuple[str, ...] | None:
    """Instruction sets of this machine that we know by name, in the order of `NAMES`; None where nothing tells."""
    known = ARM if machine_name(machine) == "aarch64" else X86
    if root == ROOT and sys.platform in ("darwin", "ios"):
        from toolkit.apple import sysctl_integer

        return tuple(name for name, (_, sysctl) in known.items() if sysctl and sysctl_integer(sysctl) == 1)
    # Big and small cores may differ: what all of them have counts.
    lines = [line.partition(":") for line in read_lines(root / "proc/cpuinfo")]
    words = [set(values.split()) for name, _, values in lines if name.strip() in ("flags", "Features")]
    if not words:
        return None
    common = set.intersection(*words)
    return tuple(name for name, (word, _) in known.items() if word in common)


def cpu_model(root: Path = ROOT) -> str:
    """The processor's name for people."""
    if root == ROOT and sys.platform in ("darwin", "ios"):
        from toolkit.apple import sysctl_text

        return sysctl_text("machdep.cpu.brand_string") or machine_name()
    for wanted in ("model name", "Hardware", "Model", "CPU part"):
        for line in read_lines(root / "proc/cpuinfo"):
            name, _, value = line.partition(":")
            if name.strip() == wanted and value.strip():
                return value.strip() if wanted != "CPU part" else f"{machine_name()} part {value.strip()}"
    return platform.processor() or machine_name()
