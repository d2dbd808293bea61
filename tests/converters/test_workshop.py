"""What the pipeline lends a target at work: a directory, stages of its own; and what a new revision of a target undoes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from converters.pipeline import convert
from converters.request import ConvertRequest, ConvertResult
from converters.stages import Stage
from converters.targets.base import Workshop
from tests.converters.small_model import SmallTarget, small_parts
from toolkit.errors import UsageError


@dataclass
class Calibrating(SmallTarget):
    """A small target with a stage of its own before it quantizes."""

    built: list[str] = field(default_factory=list)

    def quantize(self, checkpoint, lowered, recipe, workdir, workshop: Workshop) -> Path:  # type: ignore[no-untyped-def]
        def build(folder: Path) -> Path:
            self.built.append(workshop.hf_dir().name)
            (folder / "found.txt").write_text("found")
            return folder / "found.txt"

        found = workshop.run_stage(Stage("calibrated-small", "one key", "calibrating", build))
        assert found.read_text() == "found"
        return super().quantize(checkpoint, lowered, recipe, workdir, workshop)


def run(root: Path, target: SmallTarget, *recipes: str, **options: bool) -> ConvertResult:
    request = ConvertRequest("small", targets=("small",), recipes=recipes, out=root / "out", **options)
    return convert(request, parts=small_parts(root / "cache", target))


def test_a_stage_of_the_targets_own_is_built_once_for_all_recipes(tmp_path: Path) -> None:
    target = Calibrating()
    assert run(tmp_path, target, "fp16", "int8").exit_code == 0
    assert target.built == ["checkpoint"]


def test_it_is_kept_after_a_failure_and_goes_when_the_conversion_is_done(tmp_path: Path) -> None:
    target = Calibrating(fail_on={"quantize int8": RuntimeError("kernel exploded")})
    assert run(tmp_path, target, "int8").exit_code == 1
    target.fail_on.clear()
    assert run(tmp_path, target, "int8", resume=True).exit_code == 0
    assert target.built == ["checkpoint"], "not built again"
    assert not list((tmp_path / "cache").glob("*/calibrated-*"))


def test_without_resume_it_is_built_anew(tmp_path: Path) -> None:
    """Must-fail twin of the one above."""
    target = Calibrating(fail_on={"quantize int8": RuntimeError("kernel exploded")})
    run(tmp_path, target, "int8")
    target.fail_on.clear()
    assert run(tmp_path, target, "int8").exit_code == 0
    assert target.built == ["checkpoint"] * 2


def test_a_bundle_of_an_earlier_revision_is_not_taken_for_the_same(tmp_path: Path) -> None:
    assert run(tmp_path, SmallTarget(), "int8").bundles[0].is_new
    assert not run(tmp_path, SmallTarget(), "int8").bundles[0].is_new, "the same revision: there already"
    with pytest.raises(UsageError, match="is there already|exists"):
        run(tmp_path, SmallTarget(revision=2), "int8")
    later = SmallTarget(revision=2)
    assert run(tmp_path, later, "int8", force=True).bundles[0].is_new
    assert "quantize int8" in later.calls and "lower" not in later.calls, "the float model is the same"


def test_nothing_is_lent_outside_of_the_pipeline() -> None:
    with pytest.raises(LookupError):
        Workshop().hf_dir()
