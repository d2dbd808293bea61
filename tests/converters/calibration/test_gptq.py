"""GPTQ beside slow arithmetic, and beside rounding to nearest, which it must beat on the inputs it was calibrated for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from converters.calibration.gptq import Grid, Hessian, affine_grid, choose_codes, symmetric_grid
from converters.targets.litert_grid import store

GROUP = 32


def as_stored(is_symmetric: bool) -> Any:
    return lambda scales, offsets: store(scales, offsets, is_symmetric)


@pytest.fixture
def inputs() -> torch.Tensor:
    """(400, 64) correlated, with loud channels: what a Hessian is for."""
    generator = torch.Generator().manual_seed(20261130)
    mixed = torch.randn(400, 16, generator=generator) @ torch.randn(16, 64, generator=generator)
    x = mixed + 0.3 * torch.randn(400, 64, generator=generator)
    x[:, 5] *= 8
    return x


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.randn(48, 64, generator=torch.Generator().manual_seed(7)) * 0.05 + 0.02


def grid_of(weight: torch.Tensor, importance: torch.Tensor, is_symmetric: bool) -> Grid:
    fit = symmetric_grid if is_symmetric else affine_grid
    return fit(weight, importance, bits=4, group_size=GROUP, store=as_stored(is_symmetric))


def output_error(x: torch.Tensor, weight: torch.Tensor, stored: torch.Tensor) -> float:
    return float((x @ (stored - weight).T).square().mean() / (x @ weight.T).square().mean())


@pytest.mark.parametrize("is_symmetric", [True, False])
def test_chosen_codes_beat_rounding_on_the_outputs(is_symmetric: bool, inputs: torch.Tensor, weight: torch.Tensor) -> None:
    hessian = Hessian.of(inputs.T @ inputs / len(inputs))
    grid = grid_of(weight, hessian.diagonal, is_symmetric)
    codes = choose_codes(weight, hessian, grid)
    assert codes.dtype == torch.uint8 and int(codes.max()) <= 15
    chosen = output_error(inputs, weight, grid.value(codes.float()))
    rounded = output_error(inputs, weight, grid.value(grid.nearest(weight)))
    assert 0 < chosen < 0.7 * rounded


def test_without_correlation_gptq_rounds_to_nearest(weight: torch.Tensor) -> None:
    grid = grid_of(weight, torch.ones(64), False)
    codes = choose_codes(weight, Hessian.of(torch.eye(64)), grid)
    assert torch.equal(codes, grid.nearest(weight).to(torch.uint8))


def test_errors_are_handed_on_as_the_textbook_says(inputs: torch.Tensor, weight: torch.Tensor) -> None:
    """One column at a time in float64, updating the inverse Hessian by elimination instead of by Cholesky factors."""
    moment = inputs.T @ inputs / len(inputs)
    hessian = Hessian.of(moment)
    grid = grid_of(weight, hessian.diagonal, False)
    order = hessian.order.tolist()
    damped = moment.double() + 0.01 * moment.diagonal().mean().double() * torch.eye(64, dtype=torch.float64)
    inverse = torch.linalg.inv(damped[order][:, order])
    left = weight[:, order].double()
    wanted = torch.zeros(48, 64)
    for at, column in enumerate(order):
        scale, offset = (each[:, column // GROUP].double() for each in (grid.scales, grid.offsets))
        code = ((left[:, at] - offset) / scale).round().clamp(0, 15)
        wanted[:, column] = code.float()
        error = (left[:, at] - (code * scale + offset)) / inverse[at, at]
        left -= torch.outer(error, inverse[at])
        inverse -= torch.outer(inverse[:, at], inverse[at]) / inverse[at, at]
    differing = float((choose_codes(weight, hessian, grid).float() != wanted).float().mean())
    assert differing < 0.01, "float32 and float64 may part on a tie, not more"
    assert float((grid.nearest(weight) != wanted).float().mean()) > 0.1, "must-fail twin: plain rounding is far from it"


def test_an_affine_grid_finds_weights_that_lie_on_one() -> None:
    generator = torch.Generator().manual_seed(3)
    scales, offsets = store(torch.full((8, 2), 0.01), torch.full((8, 2), -0.03), False)
    codes = torch.randint(0, 16, (8, 64), generator=generator)
    codes[:, ::32], codes[:, 1::32] = 0, 15
    exact = Grid(scales, offsets, 4, GROUP).value(codes.float())
    grid = grid_of(exact, torch.ones(64), False)
    assert float((grid.value(grid.nearest(exact)) - exact).abs().max()) < 2e-4


def test_a_searched_scale_is_never_worse_than_the_widest(weight: torch.Tensor) -> None:
    importance = torch.rand(64, generator=torch.Generator().manual_seed(1)) + 0.1
    weight = weight.clone()
    weight[:, 3] *= 6
    searched = grid_of(weight, importance, True)
    widest = symmetric_grid(weight, importance, bits=4, group_size=GROUP, store=as_stored(True), shrinks=(1.0,))
    errors = [((grid.value(grid.nearest(weight)) - weight).square() * importance).sum() for grid in (searched, widest)]
    assert errors[0] < errors[1]


def test_grids_hold_only_what_the_file_can() -> None:
    from converters.stored_blocks import StoredBlocks
    from converters.targets.litert_weights import from_blocks

    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(5)) * 0.1 - 0.04
    for is_symmetric in (True, False):
        grid = grid_of(weight, torch.ones(64), is_symmetric)
        codes = grid.nearest(weight).to(torch.uint8)
        made = from_blocks(StoredBlocks("gptq", 4, GROUP, codes.numpy(), grid.scales.numpy(), grid.offsets.numpy()))
        assert (made.sums is None) == is_symmetric
        torch.testing.assert_close(torch.from_numpy(made.dequantized()), grid.value(codes.float()), rtol=1e-5, atol=1e-7)


def test_inputs_that_are_silent_do_not_break_the_factor(weight: torch.Tensor) -> None:
    moment = torch.zeros(64, 64)
    moment[0, 0] = 1.0
    hessian = Hessian.of(moment)
    assert torch.isfinite(hessian.factor).all() and torch.isfinite(Hessian.of(torch.zeros(64, 64)).factor).all()
    codes = choose_codes(weight, hessian, grid_of(weight, hessian.diagonal, True))
    assert int(codes.max()) <= 15
