"""Draws a bench run: one small chart a figure, a point a round, each bundle's median as a line."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.errors import BackendUnavailableError, UsageError

if TYPE_CHECKING:
    from toolkit.bench_record import BenchRecord

SUFFIXES = (".png", ".svg", ".pdf")
_DRAWN = {  # figure -> (title, what a value is divided by)
    "load_s": ("load, s", 1.0),
    "ttft_s": ("time to first token, s", 1.0),
    "prefill_tokens_per_s": ("prefill, tokens/s", 1.0),
    "decode_tokens_per_s": ("decode, tokens/s", 1.0),
    "peak_rss_bytes": ("peak RSS, MiB", 2.0**20),
    "energy_j": ("energy of an answer, J", 1.0),
}


def check_plot(path: Path) -> None:
    """Refuse a drawing that cannot be made, before anything is measured for it.

    Raises:
        UsageError: The name ends with no format known here, or its folder is missing.
        BackendUnavailableError: matplotlib is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"{path.name} cannot be drawn", why=f"its name ends with none of {', '.join(SUFFIXES)}", fix="use --plot bench.svg"
        )
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written", why="its folder does not exist", fix=f"make it first: mkdir -p {path.parent}")
    if path.is_dir():
        raise UsageError(f"{path} cannot be written", why="it is a folder", fix=f"name a file: --plot {path / 'bench.svg'}")
    if find_spec("matplotlib") is None:
        raise BackendUnavailableError(
            "no plot can be drawn here",
            why="matplotlib is not installed",
            fix="pip install matplotlib, or leave --plot out: --json holds every value",
        )


def draw(record: BenchRecord, path: Path) -> None:
    """Write the file, whole or not at all.

    Raises:
        UsageError: It cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")  # no window server
    from matplotlib.figure import Figure

    told = [name for name in _DRAWN if any(record.figure(side, name) for side in record.sides)]
    n_columns = min(3, len(told))
    n_rows = -(-len(told) // n_columns)
    figure = Figure(figsize=(4 * n_columns, 3 * n_rows + 0.5), layout="constrained")
    panels = list(figure.subplots(n_rows, n_columns, squeeze=False).flat)
    for name, axes in zip(told, panels, strict=False):
        _draw_panel(axes, record, name)
    for axes in panels[len(told) :]:
        axes.set_visible(False)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", fontsize=8)
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        figure.savefig(unfinished, format=path.suffix[1:], dpi=150)
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written", why=error.strerror or str(error), fix="name another place with --plot") from error


def _draw_panel(axes: Any, record: BenchRecord, name: str) -> None:
    title, divisor = _DRAWN[name]
    for index, side in enumerate(record.sides):
        if (summary := record.figure(side, name)) is None:
            continue
        values = [(one.figures[name], number) for number, one in enumerate(side.rounds, 1)]
        known = [(number, value / divisor) for value, number in values if value is not None]
        axes.plot(*zip(*known, strict=True), "o", color=f"C{index}", label=side.label)
        axes.axhline(summary.median / divisor, color=f"C{index}", alpha=0.5)
    axes.set(title=title, xlabel="round", xticks=range(1, record.job.rounds + 1) if record.job.rounds <= 10 else [1, record.job.rounds])
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])  # from zero, so that small differences look small
    axes.grid(visible=True, alpha=0.3)
