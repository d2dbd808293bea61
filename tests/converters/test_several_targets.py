"""Two targets in one command: what one of them cannot write must not cost the other's bundle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from converters.checkpoint import Checkpoint
from converters.pipeline import convert
from converters.recipe import Recipe
from converters.request import ConvertRequest, ConvertResult
from converters.targets.base import ConvertOptions, Estimate
from tests.converters.small_model import SmallTarget, small_parts
from toolkit.errors import BackendUnavailableError, BudgetError, UnsupportedModelError, UsageError


def run(root: Path, *targets: SmallTarget, recipes: tuple[str, ...] = ("int8",)) -> ConvertResult:
    names = tuple(target.name for target in targets)
    return convert(ConvertRequest("small", targets=names, recipes=recipes, out=root / "out"), parts=small_parts(root / "cache", *targets))


def published(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "out").glob("[!.]*"))


def refusing(name: str, error: Exception) -> SmallTarget:
    return SmallTarget(name=name, fail_on={"check": error})


def test_a_target_that_refuses_the_model_is_in_the_table_and_the_other_is_published(tmp_path: Path) -> None:
    broken = refusing("broken", UnsupportedModelError("broken cannot lower it", why="a reason", fix="use small"))
    result = run(tmp_path, broken, SmallTarget())
    assert [(report.target, report.verdict) for report in result.bundles] == [("broken", "error"), ("small", "pass")]
    assert published(tmp_path) == ["small-small-int8"] and result.exit_code == UnsupportedModelError.exit_code
    assert result.as_dict()["error"]["why"] == "a reason"
    assert broken.calls == ["check"], "nothing is done for a target that refused"


def test_a_library_that_one_target_lacks_does_not_stop_the_other(tmp_path: Path) -> None:
    broken = refusing("broken", BackendUnavailableError("broken cannot be used here", why="x is not installed", fix="pip install x"))
    assert run(tmp_path, SmallTarget(), broken).exit_code == 5
    assert published(tmp_path) == ["small-small-int8"]


def test_one_recipe_a_target_cannot_express_leaves_its_other_recipes(tmp_path: Path) -> None:
    result = run(tmp_path, SmallTarget(), SmallTarget(name="other"), recipes=("int8", "int8-hadamard"))
    assert [(report.target, report.recipe, report.verdict) for report in result.bundles] == [
        ("small", "int8", "pass"),
        ("small", "int8-hadamard", "error"),
        ("other", "int8", "pass"),
        ("other", "int8-hadamard", "error"),
    ]
    assert result.exit_code == 2 and published(tmp_path) == ["small-other-int8", "small-small-int8"]


def test_when_every_target_refuses_nothing_is_begun(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot rotate"):
        run(tmp_path, SmallTarget(), SmallTarget(name="other"), recipes=("int8-hadamard",))
    assert not (tmp_path / "cache").exists()


def test_one_target_alone_is_refused_whole(tmp_path: Path) -> None:
    """Must-fail twin of the table: with nothing to save, a command that is half wrong does nothing."""
    with pytest.raises(UsageError, match="cannot rotate"):
        run(tmp_path, SmallTarget(), recipes=("int8", "int8-hadamard"))
    assert published(tmp_path) == []


def test_targets_share_one_reading_and_one_set_of_answers(tmp_path: Path) -> None:
    first, second = SmallTarget(), SmallTarget(name="other")
    assert run(tmp_path, first, second, recipes=("fp16", "int8")).exit_code == 0
    assert first.calls.count("lower") == second.calls.count("lower") == 1
    assert len(list((tmp_path / "cache").glob("*/reference"))) == 1


def test_a_target_that_streams_has_no_checkpoint_written_for_it(tmp_path: Path) -> None:
    streaming = SmallTarget(reads_hf_directory=False)
    request = ConvertRequest("small", targets=("small",), recipes=("int8",), out=tmp_path / "out", verify=False)
    written: list[str] = []
    streaming.before = written.append
    convert(request, parts=small_parts(tmp_path / "cache", streaming))
    assert published(tmp_path) == ["small-small-int8"] and "lower" in written
    assert not list((tmp_path / "cache").glob("*/hf-*")), "nobody asked for the float32 directory"


def test_a_target_that_takes_no_such_model_does_not_cost_the_other_its_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def suited(target: SmallTarget, model_type: str) -> SmallTarget:
        if target.name == "deaf":
            raise UnsupportedModelError("it cannot be converted to deaf", why="no speech there", fix="use --to small")
        return target

    monkeypatch.setattr("converters.pipeline.suited", suited)
    result = run(tmp_path, SmallTarget(name="deaf"), SmallTarget())
    assert [(report.target, report.verdict) for report in result.bundles] == [("deaf", "error"), ("small", "pass")]
    assert published(tmp_path) == ["small-small-int8"]


def test_memory_is_estimated_for_each_targets_own_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe may cost more than another: what is not asked of a target is no part of its need."""
    asked: set[tuple[str, ...]] = set()

    def estimate(self: SmallTarget, checkpoint: Checkpoint, recipes: Sequence[Recipe], options: ConvertOptions) -> Estimate:
        asked.add((self.name, *(recipe.name for recipe in recipes)))
        return Estimate(0, 10**12 if any(recipe.name == "int4-g32" for recipe in recipes) else 1)

    monkeypatch.setattr(SmallTarget, "estimate", estimate)
    assert run(tmp_path / "a", SmallTarget(), SmallTarget(name="other"), recipes=("int8", "fp32")).exit_code == 0
    assert asked == {("small", "int8", "fp32"), ("other", "int8", "fp32")}
    with pytest.raises(BudgetError, match="does not fit in memory"):
        run(tmp_path / "b", SmallTarget(), recipes=("int8", "int4-g32"))


def test_what_reading_bundles_back_takes_is_counted_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SmallTarget, "estimate", lambda *_: Estimate(0, 1, verify_disk_bytes=10**15))
    with pytest.raises(BudgetError, match="does not fit on the disk"):
        run(tmp_path, SmallTarget())
