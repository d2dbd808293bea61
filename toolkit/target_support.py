"""Which devices each target's engine runs on: facts of the packages they come in, so that a plan need not install them."""

from __future__ import annotations

from toolkit.device.profile import Device

# target -> system -> processor families its engine is packaged for
_PACKAGED: dict[str, dict[str, tuple[str, ...]]] = {
    "litert": {
        "linux": ("x86_64", "aarch64"),
        "android": ("x86_64", "aarch64"),
        "darwin": ("aarch64",),
        "windows": ("x86_64",),
    },
    "mlx": {"darwin": ("aarch64",), "linux": ("x86_64", "aarch64")},
    "onnx": {"linux": ("x86_64", "aarch64"), "darwin": ("aarch64",), "windows": ("x86_64", "aarch64")},
}
_NEEDED_ISA: dict[tuple[str, str], tuple[str, str]] = {
    ("litert", "aarch64"): ("lse", "atomic instructions (LSE, ARMv8.1), which a Raspberry Pi 4 and other ARMv8.0 cores lack"),
}


def why_not(target: str, device: Device) -> str | None:
    """Why bundles of `target` cannot run on a device, or None if they can as far as is known."""
    if (systems := _PACKAGED.get(target)) is not None:
        if device.system not in systems:
            return f"the {target} engine is not packaged for {device.system}"
        if device.machine not in systems[device.system]:
            return f"the {target} engine is not packaged for {device.machine} on {device.system}"
    needed = _NEEDED_ISA.get((target, device.machine))
    if needed is not None and device.isa is not None and needed[0] not in device.isa:
        return f"the {target} engine needs {needed[1]}"
    return None


def targets_for(device: Device) -> tuple[str, ...]:
    """Targets whose bundles a device can run, as far as is known. MLX is for Apple's chips: elsewhere it is many times slower."""
    return tuple(
        target
        for target in ("litert", "mlx", "onnx", "gguf")
        if why_not(target, device) is None and (target != "mlx" or device.system == "darwin")
    )
