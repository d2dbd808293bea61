"""The frontier of a model: what each file size costs in fidelity. As data, as a table's entries, and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.request import BundleReport

PLOT_SUFFIXES = (".svg", ".png")
SAME_KL = 0.01  # a hundredth less is no reason for a larger file


@dataclass(frozen=True)
class Point:
    """One candidate that was converted and measured.

    Args:
        report: How the conversion ended.
        fits: Whether the whole bundle is as small as was asked for.
        is_chosen: Whether it is the one that is published.
    """

    report: BundleReport
    fits: bool
    is_chosen: bool = False

    @property
    def kl_mean(self) -> float | None:
        return None if self.report.fidelity is None else self.report.fidelity.kl_mean

    def as_dict(self) -> dict[str, Any]:
        """The entry of `frontier` that `--json` prints: a bundle's entry, without a path unless it was published."""
        entry = self.report.as_dict()
        if not self.is_chosen:
            entry["path"] = None
        return entry | {"fits": self.fits, "is_chosen": self.is_chosen}


def chosen(points: Sequence[Point]) -> Point | None:
    """The most faithful point that fits; of two as faithful within a hundredth, the smaller. None if none fits."""
    fitting = sorted(
        (point for point in points if point.fits and point.kl_mean is not None), key=lambda point: (point.kl_mean, point.report.bytes)
    )
    if not fitting:
        return None
    best = fitting[0].kl_mean or 0.0
    as_good = [point for point in fitting if (point.kl_mean or 0.0) <= best * (1 + SAME_KL)]
    return min(as_good, key=lambda point: point.report.bytes or 0)


def plot(points: Sequence[Point], model: str, limit_bytes: int, stem: Path) -> list[Path]:
    """Draw size against KL, a line for each target, the limit and the choices marked; as SVG and PNG.

    Args:
        points: Of all targets, in any order.
        model: Name of the checkpoint.
        limit_bytes: What the bundles may come to.
        stem: Where the files go, without a suffix.

    Returns:
        The files; empty if no point has figures.

    Raises:
        OSError: They cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")  # no window server
    from matplotlib.figure import Figure

    measured = [point for point in points if point.kl_mean is not None and point.report.bytes is not None]
    if not measured:
        return []
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for target in dict.fromkeys(point.report.target for point in measured):
        line = sorted((point for point in measured if point.report.target == target), key=lambda point: point.report.bytes or 0)
        sizes = [(point.report.bytes or 0) / 1e6 for point in line]
        axes.plot(sizes, [_drawn(point) for point in line], marker="o", label=target)
        for point, size in zip(line, sizes, strict=True):
            weight = "bold" if point.is_chosen else "normal"
            axes.annotate(point.report.recipe, (size, _drawn(point)), xytext=(6, 6), textcoords="offset points", fontsize=8, weight=weight)
    axes.axvline(limit_bytes / 1e6, color="grey", linestyle="--", label=f"--fit {limit_bytes / 1e6:g} MB")
    axes.set(xlabel="bundle, 10^6 bytes", ylabel="mean KL divergence from the checkpoint, nats a token", yscale="log", title=model)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    files = [stem.with_name(stem.name + suffix) for suffix in PLOT_SUFFIXES]
    for file in files:
        unfinished = file.with_name(f".{file.name}.unfinished")
        figure.savefig(unfinished, format=file.suffix[1:], dpi=150)
        unfinished.replace(file)
    return files


def _drawn(point: Point) -> float:
    """A logarithmic axis has no zero: what is as good as equal is drawn at 10^-6 nats."""
    return max(point.kl_mean or 0.0, 1e-6)
