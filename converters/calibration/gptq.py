"""GPTQ: codes chosen column by column, each column's rounding error handed on to those still to come.

Source: Frantar et al. 2022 (GPTQ), with act order and static groups: columns go in falling order of the Hessian's diagonal,
scales are set beforehand from the weights as they are. All arrays are torch tensors, float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any

DAMPING = 0.01  # of the Hessian's mean diagonal
COLUMNS_AT_ONCE = 128
ROWS_AT_ONCE = 32768
SHRINKS = tuple(round(0.68 + 0.02 * step, 2) for step in range(19))  # of the largest magnitude, .68 to 1.04
AFFINE_SHRINKS = (1.0, 0.9, 0.82, 0.75)
AFFINE_ROUNDS = 6


@dataclass(frozen=True)
class Grid:
    """What a group's weights can become: scale * code + offset, codes 0 .. 2^bits - 1.

    Args:
        scales: (out_features, n_groups), positive.
        offsets: The same.
        bits: Bits a code.
        group_size: Weights that share a scale and an offset.
    """

    scales: Tensor
    offsets: Tensor
    bits: int
    group_size: int

    def nearest(self, weight: Tensor) -> Tensor:
        """Codes of the nearest grid points, (out_features, in_features)."""
        groups = weight.reshape(*self.scales.shape, self.group_size)
        codes = ((groups - self.offsets[..., None]) / self.scales[..., None]).round_().clamp_(0, 2**self.bits - 1)
        return codes.reshape(weight.shape)

    def value(self, codes: Tensor) -> Tensor:
        groups = codes.reshape(*self.scales.shape, self.group_size)
        return (groups * self.scales[..., None] + self.offsets[..., None]).reshape(codes.shape)


# Scales and offsets -> those a format can hold, nearest to them; for symmetric grids offsets stay -2^(bits-1) * scale.
Storable = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def symmetric_grid(
    weight: Tensor, importance: Tensor, *, bits: int, group_size: int, store: Storable, shrinks: Sequence[float] = SHRINKS
) -> Grid:
    """Scales by search: of all shrunken ranges the one with the least squared error, each column weighted by its importance.

    Args:
        weight: (out_features, in_features).
        importance: (in_features,) positive: the Hessian's diagonal.
        bits: Bits a code.
        group_size: Weights that share a scale.
        store: What the format can hold.
        shrinks: The ranges to try, as parts of the largest magnitude.
    """
    import torch

    zero = 2 ** (bits - 1)
    groups, weights = _groups(weight, importance, group_size)
    widest = groups.abs().amax(dim=-1) / (zero - 1)
    best, chosen = torch.full_like(widest, torch.inf), widest
    for shrink in shrinks:
        scales, offsets = store(widest * shrink, widest * (-zero * shrink))
        error = _error(groups, weights, Grid(scales, offsets, bits, group_size))
        is_better = error < best
        best, chosen = torch.where(is_better, error, best), torch.where(is_better, scales, chosen)
    scales, offsets = store(chosen, chosen * -zero)
    return Grid(scales, offsets, bits, group_size)


def affine_grid(
    weight: Tensor, importance: Tensor, *, bits: int, group_size: int, store: Storable, shrinks: Sequence[float] = AFFINE_SHRINKS
) -> Grid:
    """Scales and offsets by least squares: nearest codes, then the line through them, a few times from several ranges.

    Arguments as of `symmetric_grid`; `shrinks` are the ranges to start from, as parts of the whole one.
    """
    import torch

    steps = 2**bits - 1
    groups, weights = _groups(weight, importance, group_size)
    low, high = groups.amin(dim=-1), groups.amax(dim=-1)
    total = weights.sum(dim=-1)
    best = torch.full_like(low, torch.inf)
    kept = (torch.ones_like(low), low)
    mean = (groups * weights).sum(dim=-1) / total
    for shrink in shrinks:
        scales = ((high - low) * (shrink / steps)).clamp_(min=torch.finfo(torch.float32).tiny)
        offsets = (low + high) / 2 - scales * (steps / 2)
        for _ in range(AFFINE_ROUNDS):
            scales, offsets = store(scales, offsets)
            grid = Grid(scales, offsets, bits, group_size)
            codes = ((groups - offsets[..., None]) / scales[..., None]).round_().clamp_(0, steps)
            error = _error(groups, weights, grid)
            is_better = error < best
            best = torch.where(is_better, error, best)
            kept = (torch.where(is_better, scales, kept[0]), torch.where(is_better, offsets, kept[1]))
            mean_code = (codes * weights).sum(dim=-1) / total
            apart = codes - mean_code[..., None]
            slope = (apart * (groups - mean[..., None]) * weights).sum(dim=-1) / (apart.square() * weights).sum(dim=-1).clamp_(min=1e-20)
            scales = torch.where(slope > 0, slope, scales)
            offsets = mean - scales * mean_code
    scales, offsets = store(*kept)
    return Grid(scales, offsets, bits, group_size)


def _groups(weight: Tensor, importance: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    groups = weight.reshape(weight.shape[0], -1, group_size)
    return groups, importance.reshape(1, -1, group_size).expand_as(groups)


def _error(groups: Tensor, weights: Tensor, grid: Grid) -> Tensor:
    off: Tensor = grid.value(grid.nearest(groups)) - groups
    return (off.square_() * weights).sum(dim=-1)


@dataclass(frozen=True)
class Hessian:
    """What the inputs of a matrix say about its columns.

    Args:
        diagonal: (in_features,) mean square of each input, floored so that a silent input weighs something.
        order: (in_features,) columns from the loudest input to the quietest.
        factor: (in_features, in_features) upper Cholesky factor of the damped inverse, in that order.
    """

    diagonal: Tensor
    order: Tensor
    factor: Tensor

    @classmethod
    def of(cls, second_moment: Tensor) -> Hessian:
        """From the mean of x xT over calibration tokens, (in_features, in_features)."""
        import torch

        diagonal = second_moment.diagonal().clone()
        diagonal += diagonal.mean() * 1e-3 + torch.finfo(torch.float32).tiny
        order = diagonal.argsort(descending=True)
        damped = second_moment[order][:, order].clone()
        damped.diagonal().add_(DAMPING * damped.diagonal().mean() + torch.finfo(torch.float32).tiny)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped.double()))
        return cls(diagonal, order, torch.linalg.cholesky(inverse, upper=True).float())


def choose_codes(weight: Tensor, hessian: Hessian, grid: Grid) -> Tensor:
    """Codes whose outputs are near those of the weights, on inputs like the calibration's: (out_features, in_features) uint8."""
    import torch

    codes = torch.empty(weight.shape, dtype=torch.uint8)
    for start in range(0, len(weight), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        codes[rows] = _choose_rows(weight[rows], hessian, Grid(grid.scales[rows], grid.offsets[rows], grid.bits, grid.group_size))
    return codes


def _choose_rows(weight: Tensor, hessian: Hessian, grid: Grid) -> Tensor:
    import torch

    order, factor, most = hessian.order, hessian.factor, 2**grid.bits - 1
    left = weight[:, order].clone()
    group_of = order // grid.group_size
    scales, offsets = grid.scales[:, group_of], grid.offsets[:, group_of]
    codes = torch.empty(weight.shape, dtype=torch.uint8)
    n_columns = weight.shape[1]
    for start in range(0, n_columns, COLUMNS_AT_ONCE):
        stop = min(start + COLUMNS_AT_ONCE, n_columns)
        block, inner = left[:, start:stop].clone(), factor[start:stop, start:stop]
        errors = torch.empty_like(block)
        for at in range(stop - start):
            column, scale, offset = block[:, at], scales[:, start + at], offsets[:, start + at]
            code = ((column - offset) / scale).round_().clamp_(0, most)
            codes[:, order[start + at]] = code.to(torch.uint8)
            errors[:, at] = (column - (code * scale + offset)) / inner[at, at]
            block[:, at + 1 :] -= torch.outer(errors[:, at], inner[at, at + 1 :])
        left[:, stop:] -= errors @ factor[start:stop, stop:]
    return codes
