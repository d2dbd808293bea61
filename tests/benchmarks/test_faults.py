"""What the counts of faults mean: each copy its own first start, a host that hangs is one, a kill that came too late is none."""

from __future__ import annotations

import argparse
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import faults
from tests.benchmarks.test_engine_benchmarks import bench, by_name
from toolkit.cache import CACHE_VARIABLE

# Stands in for the host: packs weights at its first start in a cache folder, and tells an answer from packed weights apart.
PACKING_HOST = f"""#!/bin/sh
if [ -e "${CACHE_VARIABLE}/pack" ]; then echo "answered from another copy's pack"; exit; fi
mkdir -p "${CACHE_VARIABLE}" && touch "${CACHE_VARIABLE}/pack" && echo answered
"""


def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Run `script` wherever faults starts a host."""
    program = tmp_path / "host"
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setattr("benchmarks.faults.sys.executable", str(program))


def plain_bundle(tmp_path: Path) -> Any:
    """As much of a bundle as is copied and damaged."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "model").write_bytes(bytes(range(256)) * 16)
    return SimpleNamespace(name="plain", path=folder, entry_path=folder / "model", manifest=SimpleNamespace(entry="model"))


def test_faults_are_counted(tiny_chat_bundle: Path, tmp_path: Path) -> None:
    arguments = (str(tiny_chat_bundle), "--damaged", "12", "--kills", "2", "--group-bytes", "")
    record = bench("faults", *arguments, "--check", tmp_path=tmp_path, **{CACHE_VARIABLE: str(tmp_path / "cache")})
    assert sum(record["details"]["damaged"].values()) == 12
    figures = by_name(record)
    assert figures["killed workers", "n_killed"]["values"] == [2]
    for name in ("n_host_deaths", "n_host_hangs", "n_without_cause"):
        assert figures["damaged bundles", name]["target"] == {"bound": "at most", "limit": 0, "is_met": True}


def test_no_copy_is_answered_from_what_another_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host(tmp_path, monkeypatch, PACKING_HOST)
    assert faults.take_damaged(plain_bundle(tmp_path), 3, tmp_path) == Counter({"answered": 3})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "damaged", "host"], "a cache was left behind"


def test_a_host_that_dies_is_counted_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.faults.sys.executable", "/bin/false")
    assert faults.take_damaged(plain_bundle(tmp_path), 2, tmp_path) == Counter({faults.HOST_DIED: 2})


def test_a_host_that_hangs_is_ended_and_counted_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host(tmp_path, monkeypatch, "#!/bin/sh\nexec sleep 20\n")
    monkeypatch.setattr(faults, "HOST_LIMIT_S", 0.2)
    assert faults.take_damaged(plain_bundle(tmp_path), 2, tmp_path) == Counter({faults.HOST_HUNG: 2})


def test_a_host_that_hangs_in_a_memory_group_did_not_survive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host(tmp_path, monkeypatch, "#!/bin/sh\nexec sleep 20\n")
    monkeypatch.setattr(faults, "GROUP_HOST_LIMIT_S", 0.2)
    monkeypatch.setattr(faults, "GROUPS", tmp_path)
    monkeypatch.setattr(faults, "_remove_group", lambda group: None)
    assert faults.take_group(plain_bundle(tmp_path), 300, tmp_path) == dict.fromkeys(("plan", "forced"), faults.HOST_HUNG)


def kills(monkeypatch: pytest.MonkeyPatch, *outcomes: str) -> Counter[str]:
    """What `take_kills` makes of two kills that end as told, the last outcome for ever."""
    left = list(outcomes)
    monkeypatch.setattr(faults.Engine, "open", lambda bundle, **_: nullcontext())
    monkeypatch.setattr(faults, "_kill_once", lambda engine, after_s: left.pop(0) if len(left) > 1 else left[0])
    return faults.take_kills(SimpleNamespace(), 2)  # type: ignore[arg-type]


def test_a_kill_that_came_too_late_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kills(monkeypatch, faults.TOO_LATE, "text lost", faults.TOO_LATE, faults.KEPT) == {
        faults.TOO_LATE: 2,
        "text lost": 1,
        faults.KEPT: 1,
    }


def test_kills_that_never_hit_an_answer_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(kills(monkeypatch, faults.TOO_LATE)) == {faults.TOO_LATE}


def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, kills: int = 0, group: str = "", **stand_ins: object) -> Any:
    """The report of a run whose parts are stood in for."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(faults.Bundle, "open", lambda path: plain_bundle(tmp_path))
    monkeypatch.setattr(faults, "GROUPS", tmp_path)
    for name, outcomes in stand_ins.items():
        monkeypatch.setattr(faults, name, lambda *_, outcomes=outcomes: outcomes)
    return faults.measure(argparse.Namespace(bundle="b", damaged=0, kills=kills, group_bytes=group, scratch=tmp_path))


@pytest.mark.parametrize(
    ("outcomes", "missed"),
    [
        ({faults.KEPT: 2, faults.TOO_LATE: 5}, set()),
        ({faults.KEPT: 1, faults.TOO_LATE: 5}, {"n_killed"}),
        ({faults.TOO_LATE: 7}, {"n_killed"}),
        ({faults.KEPT: 1, "text lost": 1}, {"kept_share"}),
        ({faults.KEPT: 1, "next answer empty": 1}, {"kept_share"}),
    ],
)
def test_only_answers_that_were_cut_off_are_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcomes: dict[str, int], missed: set[str]
) -> None:
    made = report(monkeypatch, tmp_path, kills=2, take_kills=Counter(outcomes))
    assert {figure.name for figure in made.missed} == missed
    (counted,) = (figure.values for figure in made.figures if figure.name == "n_killed")
    assert counted == (sum(n for outcome, n in outcomes.items() if outcome != faults.TOO_LATE),)


@pytest.mark.parametrize(
    ("plan", "forced", "missed"),
    [
        ("exit 3, host alive: too large", "exit 1, host alive: the kernel killed it because", set()),
        ("exit 3, host alive: too large", "exit 0, host alive: no error", {"killed_share"}),
        ("exit 0, host alive: no error", "exit 1, host alive: the kernel killed it because", {"refused_share"}),
        (faults.HOST_HUNG, faults.HOST_HUNG, {"refused_share", "killed_share", "survived_share"}),
    ],
)
def test_a_group_that_kills_nothing_has_shown_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plan: str, forced: str, missed: set[str]
) -> None:
    made = report(monkeypatch, tmp_path, group="300MB", take_group={"plan": plan, "forced": forced})
    assert {figure.name for figure in made.missed} == missed
