from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from toolkit.device.busy import WINDOW_S, busy_text, is_busy, measure_busy_share


def stat(busy: int, idle: int) -> str:
    """/proc/stat: a third of the busy ticks each in user (all of a guest), system and softirq; half of the others in iowait."""
    return f"cpu  {busy // 3} 0 {busy // 3} {idle // 2} {idle // 2} 0 {busy // 3} 0 {busy // 3} 7\ncpu0 1 2 3 4\n"


def sleeper(root: Path, windows: Iterator[tuple[int, int]]) -> Callable[[float], None]:
    """A sleep during which so many busy and idle ticks pass."""
    so_far = [0, 0]
    (root / "proc").mkdir()
    (root / "proc/stat").write_text(stat(0, 0))

    def sleep(seconds: float) -> None:
        assert seconds == WINDOW_S, "a look lasts as long as it says"
        busy, idle = next(windows)
        so_far[0], so_far[1] = so_far[0] + busy, so_far[1] + idle
        (root / "proc/stat").write_text(stat(*so_far))

    return sleep


@pytest.mark.parametrize(
    ("windows", "share"),
    [
        ([(0, 300)], 0.0),
        ([(60, 240)], 0.2),
        ([(300, 0), (30, 270)], 0.1),  # something that had just begun
        ([(300, 0), (150, 150), (240, 60)], 0.5),
    ],
)
def test_the_least_of_three_looks_counts_and_a_quiet_one_is_enough(tmp_path: Path, windows: list[tuple[int, int]], share: float) -> None:
    left = iter(windows)
    assert measure_busy_share(tmp_path, sleep=sleeper(tmp_path, left)) == pytest.approx(share)
    assert list(left) == [], "no look too few, and none more than there are windows"


@pytest.mark.parametrize("text", [None, "", "cpu\n", "cpu  1 2 3\n", "cpu  1 2 x 4 5\n", "intr 1 2 3 4 5\n"])
def test_what_tells_nothing_is_unknown_and_holds_nothing_up(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/stat").write_text(text)
    assert measure_busy_share(tmp_path, sleep=lambda seconds: None) is None
    assert not is_busy(None)


def test_more_than_a_quarter_of_the_cpus_is_busy() -> None:
    assert not is_busy(0.25) and is_busy(0.26)
    assert busy_text(0.5) == f"other programs keep {os.cpu_count() / 2:.1f} of {os.cpu_count()} CPUs busy"  # type: ignore[operator]


def test_this_machine_tells() -> None:
    if not Path("/proc/stat").exists():
        pytest.skip("no /proc here")
    share = measure_busy_share()
    assert share is not None and 0 <= share <= 1
