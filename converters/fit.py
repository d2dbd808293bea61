"""`--fit SIZE`: the most faithful bundle that is no larger, found by converting and measuring, smallest candidate first.

OUT/.fit/NAME/      candidates while the search runs; an interrupted search goes on from them with --resume
OUT/NAME-fit.svg    the frontier: what each size costs
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.existing import same_bundle
from converters.faults import explained
from converters.fit_candidates import Candidate, candidates, made_to_measure, project_recipes
from converters.frontier import Point, chosen, plot
from converters.package import OutputFolder
from converters.parts import Parts, default_parts
from converters.pipeline import convert, options_of, read_source
from converters.progress import Progress, Silent
from converters.recipe import load_recipe
from converters.request import BundleReport, ConvertRequest, ConvertResult
from converters.targets import suited
from toolkit.bundle import Bundle
from toolkit.errors import BudgetError, FidelityError, ToolkitError, UsageError
from toolkit.units import format_bytes

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint
    from converters.targets.base import Target

TRIALS = ".fit"
SEARCH = "fit"  # what stands in names where a bundle's have its recipe
# A larger file helps if it lowers the mean KL by more than this share. Two in a row that do not end a search, and so does a
# KL that no later figure can be told from: the engines' own arithmetic differs from PyTorch's by about as much.
HELPS = 0.05
MOST_IN_VAIN = 2
GOOD_ENOUGH_KL = 1e-6
FORESEEN = 1.01  # what a bundle comes to is foreseen to a hundredth; only what is clearly too large is not made


@dataclass(frozen=True)
class FitResult:
    """What a search came to.

    Args:
        result: One report for each target: the published bundle, or why there is none.
        points: Everything that was measured, targets in order, smallest first.
        plots: Where the frontier was drawn.
    """

    result: ConvertResult
    points: tuple[Point, ...]
    plots: tuple[Path, ...]

    def as_dict(self) -> dict[str, Any]:
        """What `--json` prints: a conversion's object with `frontier` and `plots`."""
        return {
            **self.result.as_dict(),
            "frontier": [point.as_dict() for point in self.points],
            "plots": [str(path) for path in self.plots],
        }


def fit(
    request: ConvertRequest,
    limit_bytes: int,
    recipes: Sequence[str] | None = None,
    progress: Progress | None = None,
    *,
    parts: Parts | None = None,
) -> FitResult:
    """Find, for each target, the most faithful bundle of at most `limit_bytes`, and publish it.

    Args:
        request: As for `convert`; its recipes are not looked at.
        limit_bytes: What all files of a bundle may come to.
        recipes: What may be tried; None: everything the project knows, and mixes made to measure.

    Raises:
        UsageError: The request is wrong: it leaves measuring out, or the size is not positive.
        ToolkitError: The source cannot be read, or OUT cannot be written to.
    """
    progress, parts = progress or Silent(), parts or default_parts()
    request.check()
    _check(request, limit_bytes)
    out = OutputFolder(request.out)
    try:
        with explained(f"write bundles into {request.out}", request.out):
            out.prepare()
        checkpoint = read_source(request, parts, progress)
        parts = replace(parts, read_checkpoint=lambda *asked: checkpoint)
        with out.building(f"{checkpoint.name}-{SEARCH}", on_wait=lambda: progress.note("waiting: another search is writing here")):
            search = _Search(request, limit_bytes, recipes, progress, parts, out, checkpoint)
            return search.run()
    finally:
        out.tidy()


def _check(request: ConvertRequest, limit_bytes: int) -> None:
    if not request.verify:
        raise UsageError("--fit cannot be used with --no-verify", why="it chooses by what was measured", fix="leave --no-verify out")
    if limit_bytes <= 0:
        raise UsageError(f"--fit {limit_bytes} is no size", why="a bundle has more than 0 bytes", fix="use --fit 160MB")


@dataclass
class _Search:
    request: ConvertRequest
    limit_bytes: int
    recipes: Sequence[str] | None
    progress: Progress
    parts: Parts
    out: OutputFolder
    checkpoint: Checkpoint

    @property
    def trials(self) -> Path:
        return self.out.path / TRIALS / self.checkpoint.name

    def run(self) -> FitResult:
        if not self.request.resume:
            shutil.rmtree(self.trials, ignore_errors=True)
        points: list[Point] = []
        reports = []
        for name in self.request.targets:
            report, found = self._searched(name)
            reports.append(report)
            points += found
        plots = self._plot(points)
        if not any(isinstance(report.error, UsageError) for report in reports):  # else --force --resume goes on from what was measured
            shutil.rmtree(self.trials, ignore_errors=True)
            with suppress(OSError):
                self.trials.parent.rmdir()
        return FitResult(ConvertResult(tuple(reports)), tuple(points), tuple(plots))

    def _searched(self, name: str) -> tuple[BundleReport, list[Point]]:
        """How the search for one target ended, and everything that was measured, the published point marked."""
        found: list[Point] = []
        try:
            found, n_not_made = self._points(name)
            best = self._best(name, found, n_not_made)
            report = self._publish(best.report)
        except ToolkitError as error:
            return BundleReport.failed(self.checkpoint.name, name, SEARCH, error), found
        return report, [replace(point, report=report, is_chosen=True) if point is best else point for point in found]

    def _points(self, name: str) -> tuple[list[Point], int]:
        """Candidates of one target, smallest first, until they no longer help or no longer fit; and how many that leaves for their size."""
        target = suited(self.parts.load_target(name), self.checkpoint.spec.model_type)
        options = options_of(self.request, self.checkpoint)
        asked = project_recipes(name) if self.recipes is None else [load_recipe(each) for each in self.recipes]
        waiting = candidates(target, self.checkpoint, asked, options)
        points: list[Point] = []
        n_not_made, n_in_vain, best_kl, rest_bytes = 0, 0, math.inf, None
        while waiting:
            candidate = waiting.pop(0)
            if points and candidate.weight_bytes + (rest_bytes or 0) > self.limit_bytes * FORESEEN:
                n_not_made = 1 + len(waiting)
                larger = f" and {len(waiting)} larger would" if waiting else " would"
                self.progress.note(f"{name}: {candidate.recipe.name}{larger} not fit")
                break
            point = self._tried(target, candidate)
            points.append(point)
            if point.report.bytes is None:
                continue
            if rest_bytes is None:
                rest_bytes = point.report.bytes - candidate.weight_bytes
                if self.recipes is None:
                    known = [candidate, *waiting]
                    made = made_to_measure(target, self.checkpoint, options, self.limit_bytes - rest_bytes, known)
                    waiting = sorted([*waiting, *made], key=lambda each: each.weight_bytes)
            if not point.fits:
                continue
            assert point.kl_mean is not None
            n_in_vain = 0 if point.kl_mean < best_kl * (1 - HELPS) else n_in_vain + 1
            best_kl = min(best_kl, point.kl_mean)
            if n_in_vain >= MOST_IN_VAIN or best_kl <= GOOD_ENOUGH_KL:
                self.progress.note(f"{name}: larger files cannot help")
                break
        return points, n_not_made

    def _tried(self, target: Target, candidate: Candidate) -> Point:
        recipe = candidate.recipe
        asked = replace(
            self.request, targets=(target.name,), recipes=(recipe.name,), out=self.trials, max_kl=None, force=False, resume=True
        )
        self.progress.note(f"{target.name}: trying {recipe.name}, about {format_bytes(candidate.weight_bytes)} of weights")
        try:
            report = convert(asked, self.progress, parts=self.parts, recipes=[recipe]).bundles[0]
        except ToolkitError as error:
            report = BundleReport.failed(self.checkpoint.name, target.name, recipe.name, error)
        return Point(report, fits=report.bytes is not None and report.error is None and report.bytes <= self.limit_bytes)

    def _best(self, target: str, points: Sequence[Point], n_not_made: int) -> Point:
        best = chosen(points)
        if best is None:
            raise self._nothing_fits(target, points)
        if self.request.max_kl is not None and (best.kl_mean or 0.0) > self.request.max_kl:
            raise FidelityError(
                f"no {target} bundle of {format_bytes(self.limit_bytes)} is as faithful as --max-kl {self.request.max_kl:g} asks",
                why=f"the best is {best.report.recipe}: mean KL {best.kl_mean:.4f} at {format_bytes(best.report.bytes or 0)}",
                fix=", or ".join(self._more_faithful(points, n_not_made)),
            )
        return best

    def _more_faithful(self, points: Sequence[Point], n_not_made: int) -> Iterator[str]:
        """What can help where the best that fits is not faithful enough."""
        if n_not_made or any((point.report.bytes or 0) > self.limit_bytes for point in points):
            yield "allow a larger file with --fit"
        if self.recipes is not None:
            yield "leave --recipe out"
        yield "allow a larger --max-kl"

    def _publish(self, report: BundleReport) -> BundleReport:
        assert report.path is not None
        with self.out.building(report.name) as folder:
            key = Bundle.unchecked(report.path).manifest.conversion_key
            there = None if self.request.force else same_bundle(self.out.path / report.name, key, {}, verify=True)
            if there is not None:
                return there
            self.out.require_free(report.name, force=self.request.force)
            os.rmdir(folder)
            os.rename(report.path, folder)
            place = self.out.publish(folder, report.name, force=self.request.force)
        return replace(report, path=place)

    def _nothing_fits(self, target: str, points: Sequence[Point]) -> ToolkitError:
        sizes = [point.report for point in points if point.report.bytes is not None and point.report.error is None]
        if not sizes:
            errors = [point.report.error for point in points if point.report.error is not None]
            return errors[0]
        least = min(sizes, key=lambda report: report.bytes or 0)
        megabytes = -(-(least.bytes or 0) // 10**6)
        return BudgetError(
            f"no {target} bundle of {self.checkpoint.name} fits {format_bytes(self.limit_bytes)}",
            why=f"the smallest is {least.recipe} with {format_bytes(least.bytes or 0)}",
            fix=f"use --fit {megabytes}MB, or a smaller model",
        )

    def _plot(self, points: Sequence[Point]) -> list[Path]:
        with explained(f"draw the frontier into {self.out.path}", self.out.path):
            return plot(points, self.checkpoint.name, self.limit_bytes, self.out.path / f"{self.checkpoint.name}-{SEARCH}")
