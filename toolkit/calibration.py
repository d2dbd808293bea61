"""What was measured of a bundle when it was made, read from its manifest: `memory.measured` (docs/formats/memory.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolkit.errors import FormatError
from toolkit.manifest import Manifest

_FIELDS = ("context_length", "peak_rss_bytes", "anonymous_bytes", "mapped_bytes", "address_space_bytes")
_MOST_RUNS, _MOST_THREADS, _MOST_BYTES = 16, 2**16, 2**50


@dataclass(frozen=True)
class MemoryRun:
    """One measured process: it opened the bundle, filled its context and was read.

    Args:
        context_length: Tokens of its KV cache.
        is_first_start: It had to pack the weights for this processor first.
        peak_rss_bytes: Its highest resident memory (VmHWM).
        anonymous_bytes, mapped_bytes: How that was made up after the answer: its own, and files.
        address_space_bytes: Its highest virtual memory (VmPeak).
    """

    context_length: int
    is_first_start: bool
    peak_rss_bytes: int
    anonymous_bytes: int
    mapped_bytes: int
    address_space_bytes: int


@dataclass(frozen=True)
class Calibration:
    """Two runs at different contexts with weights packed before, and the first start of all."""

    short: MemoryRun
    long: MemoryRun
    first: MemoryRun | None

    def peak(self, context_length: int, of: Callable[[int, int], int] = lambda _, measured: measured) -> int:
        """The peak at `context_length` on the straight line through both runs; `of` (context, bytes) says what of it counts."""
        short, long = self.short, self.long
        return self._line(of(short.context_length, short.peak_rss_bytes), of(long.context_length, long.peak_rss_bytes), context_length)

    def mapped(self, context_length: int) -> int:
        """The part of it that is files."""
        return max(0, self._line(self.short.mapped_bytes, self.long.mapped_bytes, context_length))

    def address_space(self, context_length: int) -> int:
        """Virtual memory; the first start's where that was more."""
        most_packing = 0 if self.first is None else max(0, self.first.address_space_bytes - self._space(self.first.context_length))
        return self._space(context_length) + most_packing

    @property
    def packing_bytes(self) -> int:
        """What the first start took above the others."""
        return 0 if self.first is None else max(0, self.first.peak_rss_bytes - self.peak(self.first.context_length))

    def _space(self, context_length: int) -> int:
        return self._line(self.short.address_space_bytes, self.long.address_space_bytes, context_length)

    def _line(self, at_short: int, at_long: int, context_length: int) -> int:
        step = (at_long - at_short) / (self.long.context_length - self.short.context_length)
        return round(at_short + step * (context_length - self.short.context_length))


def read_calibration(manifest: Manifest) -> Calibration | None:
    """The measurements in a manifest; None when it has none.

    Raises:
        FormatError: They are no measurements: a field missing or negative, or not two different contexts.
    """
    measured = manifest.memory.get("measured")
    if measured is None:
        return None
    try:
        runs = _runs(measured)
        settled = sorted((run for run in runs if not run.is_first_start), key=lambda run: run.context_length)
        if len(settled) < 2 or settled[0].context_length == settled[-1].context_length:
            raise ValueError("it needs runs at two contexts that are no first start")
        return Calibration(settled[0], settled[-1], next((run for run in runs if run.is_first_start), None))
    except ValueError as error:
        raise FormatError(
            f"the memory figures of {manifest.name} are no measurements",
            why=f"memory.measured: {error}",
            fix="convert the model again (convert SOURCE --to TARGET --force)",
        ) from error


def _runs(measured: Any) -> list[MemoryRun]:
    machine, runs = _field(measured, "", "machine"), _field(measured, "", "runs")
    if not isinstance(machine, str):
        raise ValueError(f"machine is {str(machine)[:20]}; it must be the name of a processor family")
    _whole(measured, "", "threads", most=_MOST_THREADS)
    if not isinstance(runs, list) or len(runs) > _MOST_RUNS:
        raise ValueError(f"runs must be a list of at most {_MOST_RUNS}")
    return [_run(data, f"runs[{index}].") for index, data in enumerate(runs)]


def _run(data: Any, where: str) -> MemoryRun:
    is_first_start = _field(data, where, "is_first_start")
    if not isinstance(is_first_start, bool):
        raise ValueError(f"{where}is_first_start is {str(is_first_start)[:20]}; it must be true or false")
    return MemoryRun(is_first_start=is_first_start, **{name: _whole(data, where, name, most=_MOST_BYTES) for name in _FIELDS})


def _whole(data: Any, where: str, name: str, *, most: int) -> int:
    value = _field(data, where, name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
        raise ValueError(f"{where}{name} is {str(value)[:20]}; it must be a whole number, 1 to {most}")
    return value


def _field(data: Any, where: str, name: str) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"{where.rstrip('.') or 'it'} is no object")
    if name not in data:
        raise ValueError(f"{where}{name} is missing")
    return data[name]
