"""What stops a conversion: before any work where it can be seen, else with nothing half written and what is finished kept."""

import math
from pathlib import Path

import pytest

from converters.pipeline import convert
from converters.request import ConvertRequest
from converters.resources import FreeMemory
from tests.converters.desk import ALL, Desk
from tests.converters.small_model import SmallTarget, small_checkpoint, small_parts
from toolkit.bundle import Bundle
from toolkit.errors import BackendUnavailableError, BudgetError, FormatError, ToolkitError, UsageError


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_everything_is_checked_before_any_work(desk):
    with pytest.raises(UsageError, match="cannot rotate"):
        desk.convert("int8", "int8-hadamard")
    assert desk.target.calls == ["check"] * 2
    assert not desk.out.exists()


@pytest.mark.parametrize(
    "request_change",
    [
        {"recipes": ()},
        {"recipes": ("int8", "int8")},
        {"recipes": ("int9",)},
        {"targets": ()},
        {"context_length": 31},
        {"context_length": 4097},
        {"max_kl": -1.0},
        {"max_kl": math.nan},
    ],
)
def test_a_wrong_request_is_refused_before_any_work(desk, request_change):
    with pytest.raises(UsageError):
        desk.convert(**request_change)
    assert desk.target.calls == [] and not desk.out.exists()


@pytest.mark.parametrize("name", ["../evil", ".hidden", "a/b", "", "a\nb", "x" * 101])
def test_a_name_that_is_no_folder_name_is_refused(desk, name):
    with pytest.raises(UsageError, match="name of a bundle"):
        desk.convert(parts={"read_checkpoint": lambda *_: small_checkpoint(name=name)})


def test_two_recipe_files_of_one_name_are_refused(desk, tmp_path):
    from converters.recipe import RECIPES_DIR

    (tmp_path / "a.toml").write_text((RECIPES_DIR / "int8.toml").read_text())
    with pytest.raises(UsageError, match="same name"):
        desk.convert("int8", str(tmp_path / "a.toml"))


def test_too_little_memory_is_refused_before_any_work(desk):
    with pytest.raises(BudgetError) as caught:
        desk.convert(max_memory_bytes=400)
    assert caught.value.exit_code == 3 and desk.target.calls == ["check"] and not desk.out.exists()


def test_tight_memory_takes_the_lean_path_and_writes_the_same_bundle(desk, tmp_path):
    desk.convert("int8", max_memory_bytes=600)
    assert "lower-lean" in desk.target.calls
    other = Desk(tmp_path / "other")
    other.convert("int8")
    assert "lower" in other.target.calls
    lean, fast = (Bundle.open(each.out / "small-small-int8").manifest for each in (desk, other))
    assert lean.files == fast.files and lean.conversion_key == fast.conversion_key


def test_a_cached_float_model_needs_little_memory(desk):
    desk.convert("fp16")
    desk.fresh()
    assert desk.convert("int8", max_memory_bytes=200).exit_code == 0


def test_a_control_group_refuses_whatever_the_user_says(desk):
    with pytest.raises(BudgetError, match="the group"):
        desk.convert(max_memory_bytes=10**6, parts={"hard_limit": lambda: FreeMemory(100, "the group")})


def test_a_full_disk_is_refused_before_any_work(desk, monkeypatch):
    import shutil
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**30, 2**30, 2**20))
    with pytest.raises(BudgetError) as caught:
        desk.convert()
    assert "1 MiB are free" in caught.value.why and desk.target.calls == ["check"]


def test_a_broken_source_keeps_its_own_error(desk):
    def read(*_):
        raise FormatError("model.safetensors is cut off", why="it ends 3 bytes early", fix="download it again")

    with pytest.raises(FormatError, match="cut off"):
        desk.convert(parts={"read_checkpoint": read})
    assert not desk.out.exists()


def test_a_target_whose_library_is_missing_is_a_dependency_error(desk):
    def load(name):
        raise BackendUnavailableError("no", why="mlx is not installed", fix="pip install")

    with pytest.raises(BackendUnavailableError):
        desk.convert(parts={"load_target": load})


def test_one_failing_recipe_does_not_stop_the_others(desk):
    desk.target.fail_on["quantize int8"] = RuntimeError("kernel exploded")
    result = desk.convert("fp16", "int8", "int4-g32")
    assert desk.published() == ["small-small-fp16", "small-small-int4-g32"]
    assert [report.verdict for report in result.bundles] == ["pass", "error", "reported"]
    assert result.exit_code == 1 and "kernel exploded" in result.bundles[1].error.why
    assert result.as_dict()["bundles"][1]["error"]["code"] == 1 and result.as_dict()["error"]["code"] == 1


def test_one_failing_target_does_not_stop_the_others(desk):
    broken = SmallTarget(name="broken", fail_on={"lower": RuntimeError("no graph")})
    parts = small_parts(desk.cache, broken, desk.target, verifier=desk.verifier)
    result = convert(ConvertRequest("small", targets=("broken", "small"), recipes=("fp16", "int8"), out=desk.out), parts=parts)
    assert [report.verdict for report in result.bundles] == ["error", "error", "pass", "pass"]
    assert broken.calls.count("lower") == 1, "a lowering that failed is not tried again for the next recipe"
    assert desk.published() == ["small-small-fp16", "small-small-int8"]


def test_a_reference_that_fails_is_tried_once(desk):
    desk.verifier.fail_on["reference"] = RuntimeError("torch")
    assert desk.convert("fp16", "int8").exit_code == 1
    assert desk.verifier.calls == ["reference"] and desk.published() == []


def test_different_failures_share_no_code(desk):
    desk.target.fail_on = {"quantize int8": MemoryError(), "quantize fp16": RuntimeError()}
    assert desk.convert("fp16", "int8").exit_code == 1
    desk.target.fail_on = {"quantize int8": MemoryError()}
    assert desk.convert("fp16", "int8", force=True).exit_code == 3


def test_a_full_disk_at_work_is_a_budget_error_and_resumes(desk):
    import errno

    desk.target.fail_on["assemble int8"] = OSError(errno.ENOSPC, "No space left on device")
    result = desk.convert("int8")
    assert result.exit_code == 3 and "--resume" in result.bundles[0].error.fix and desk.published() == []
    desk.fresh()
    assert desk.convert("int8", resume=True).exit_code == 0
    assert desk.target.calls == ["check", "assemble int8"]


@pytest.mark.parametrize("stage", ["lower", "quantize int8", "assemble int8", "measure"])
@pytest.mark.parametrize("resume", [True, False])
def test_an_interrupted_run_leaves_nothing_and_resumes_from_the_last_finished_stage(desk, stage, resume):
    (desk.verifier if stage == "measure" else desk.target).fail_on[stage] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        desk.convert("int8")
    assert not desk.out.exists()
    desk.fresh()
    assert desk.convert("int8", resume=resume).exit_code == 0
    order = ["lower", "quantize int8", "assemble int8"]
    done = order.index(stage) if stage in order else 2
    kept = order[:done] if resume else order[: min(done, 1)]
    assert [call for call in desk.target.calls if call != "check"] == [
        call for call in order if call not in kept or call == "assemble int8"
    ]


def test_a_damaged_stage_is_not_resumed_from(desk):
    desk.target.fail_on["assemble int8"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        desk.convert("int8")
    [model] = desk.cache.glob("*/quantized-small-int8-*/model.npz")
    model.write_bytes(b"x" + model.read_bytes()[1:])
    desk.fresh()
    assert desk.convert("int8", resume=True).exit_code == 0
    assert "quantize int8" in desk.target.calls
    Bundle.open(desk.out / "small-small-int8", full_check=True)


def test_every_error_names_what_why_and_fix(desk):
    desk.target.fail_on["quantize int8"] = RuntimeError("kernel exploded")
    [error] = desk.convert("int8").errors
    assert isinstance(error, ToolkitError) and len(str(error).splitlines()) == 3


@pytest.mark.parametrize("in_the_way", ["a folder with files", "a file"])
def test_force_looks_at_what_it_would_replace_before_any_work(desk, in_the_way):
    place = desk.out / "small-small-int8"
    desk.out.mkdir()
    if in_the_way == "a file":
        place.write_text("mine")
    else:
        place.mkdir()
        (place / "diary.txt").write_text("mine")
    with pytest.raises(UsageError, match="is in the way"):
        desk.convert("int8", force=True)
    assert desk.target.calls == ["check"] and place.exists()


def test_names_of_nothing_are_refused_in_three_lines(desk):
    for change in ({"recipes": ()}, {"targets": ()}, {"recipes": ("int8", "int8")}):
        with pytest.raises(UsageError) as caught:
            ConvertRequest("small", **change).check()
        assert len(str(caught.value).splitlines()) == 3


def test_recipes_at_work_side_by_side_are_no_other_conversion(desk):
    result = desk.convert(*ALL, parts={"n_at_once": 2})
    assert result.exit_code == 0
    assert not [text for text in desk.notes.texts if "waiting for another conversion" in text]
