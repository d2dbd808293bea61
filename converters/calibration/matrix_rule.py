"""What calibration is to make of one matrix, as data that crosses into another process."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from converters.calibration.gptq import Grid, affine_grid, symmetric_grid

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any

QUICK_SHRINKS = (1.0, 0.9)
Method = Literal["gptq", "int8", "fixed"]


@dataclass(frozen=True)
class MatrixRule:
    """One matrix.

    Args:
        method: `gptq`, codes chosen here; `int8`, rounded later with one scale a row; `fixed`, not touched (kept codes, floats).
        bits: Bits a code, for `gptq`.
        group_size: Weights that share a scale, for `gptq`.
        is_symmetric: Whether zero is a grid point and there are no offsets, for `gptq`.
        int8_rows: First rows that are rounded to int8 all the same.
        promotion_bits: Further bits the whole matrix would take as int8, where it may be promoted; 0 where it may not.
    """

    method: Method
    bits: int = 4
    group_size: int = 32
    is_symmetric: bool = True
    int8_rows: int = 0
    promotion_bits: int = 0


class Format:
    """What a target's file can hold: a module with `store(scales, offsets, is_symmetric)` in torch."""

    def __init__(self, module: str) -> None:
        self._store = importlib.import_module(module).store

    def grid(self, rule: MatrixRule, weight: Tensor, importance: Tensor, *, is_quick: bool = False) -> Grid:
        """Scales and offsets of a matrix by its rule; a quick search for trials."""
        fit = symmetric_grid if rule.is_symmetric else affine_grid

        def store(scales: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
            stored: tuple[Tensor, Tensor] = self._store(scales, offsets, rule.is_symmetric)
            return stored

        options: dict[str, Any] = {"bits": rule.bits, "group_size": rule.group_size, "store": store}
        return fit(weight, importance, **options, shrinks=QUICK_SHRINKS) if is_quick else fit(weight, importance, **options)

    def rounded(self, rule: MatrixRule, weight: Tensor, importance: Tensor) -> Tensor:
        """A matrix rounded to nearest by its rule, dequantized: what a trial compares."""
        if rule.method == "int8":
            return int8_rows(weight)
        grid = self.grid(rule, weight, importance, is_quick=True)
        return grid.value(grid.nearest(weight))


def int8_rows(weight: Tensor) -> Tensor:
    """Rounded to int8 with one scale a row, dequantized."""
    scales = (weight.abs().amax(dim=1, keepdim=True) / 127).clamp_(min=1e-30)
    return (weight / scales).round_() * scales
