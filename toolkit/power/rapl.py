"""Linux on x86: energy counters of the processor packages (RAPL) in /sys/class/powercap, in microjoules.

Since 2020 they may only be read by root (CVE-2020-8694); where they may not, this tells nothing.
"""

from __future__ import annotations

from pathlib import Path

from toolkit.power.kernel_files import folders, read_integer, read_text

ZONES = "sys/class/powercap"
_MICRO = 1e-6
# A platform zone ("psys") counts what the packages count once more, so it stands alone; cores and memory are parts of a package.
_WHOLE, _PACKAGE = "psys", "package-"


class RaplCounter:
    """Joules since it was made. A difference is right if fewer than two wraps lie between: at 100 W a counter takes over half an hour."""

    def __init__(self, root: Path) -> None:
        """Choose the zones: the whole platform where it is counted, else all packages."""
        named = [(read_text(folder / "name") or "", folder) for folder in folders(root / ZONES, "intel-rapl:")]
        whole = [folder for name, folder in named if name == _WHOLE]
        packages = [folder for name, folder in named if name.startswith(_PACKAGE)]
        self._last: dict[Path, int] = {}
        for zones in (whole, packages):
            counts = {folder: read_integer(folder / "energy_uj") for folder in zones}
            known = {folder: count for folder, count in counts.items() if count is not None and count >= 0}
            if known and len(known) == len(counts):
                self._last = known
                break
        self._total_uj = 0

    @property
    def is_there(self) -> bool:
        """Whether this machine has counters that may be read."""
        return bool(self._last)

    def energy_j(self) -> float | None:
        """Joules counted since it was made; None once a counter can no longer be read."""
        if not self._last:
            return None
        for folder, before in list(self._last.items()):
            now = read_integer(folder / "energy_uj")
            if now is None or (step := _step(before, now, read_integer(folder / "max_energy_range_uj"))) is None:
                self._last = {}  # half of a machine's energy is no figure
                return None
            self._last[folder] = now
            self._total_uj += step
        return self._total_uj * _MICRO


def _step(before: int, now: int, largest: int | None) -> int | None:
    """What was counted between two looks, over a wrap; None where a counter went back and does not say where it wraps."""
    if now >= before:
        return now - before
    return None if largest is None or largest < before else largest - before + now
