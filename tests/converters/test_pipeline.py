import dataclasses
import json
import math
from pathlib import Path

import pytest

from converters.pipeline import convert
from converters.recipe import load_recipe
from converters.request import ConvertRequest, ConvertResult
from converters.resources import FreeMemory
from tests.converters.small_model import SmallTarget, SmallVerifier, small_checkpoint, small_parts
from toolkit.bundle import Bundle
from toolkit.errors import BackendUnavailableError, BudgetError, FidelityError, FormatError, ToolkitError, UsageError

ALL = ("fp32", "fp16", "int8", "int4-g32")


class Notes:
    """A Progress that keeps what it was told."""

    def __init__(self) -> None:
        from converters.progress import Silent

        self.texts: list[str] = []
        self.stage = Silent().stage

    def note(self, text: str) -> None:
        self.texts.append(text)


class Desk:
    """One user's machine: a cache, an output folder, and the target and verifier of the last run."""

    def __init__(self, root: Path) -> None:
        self.cache, self.out = root / "cache", root / "out"
        self.target, self.verifier, self.notes = SmallTarget(), SmallVerifier(), Notes()

    def convert(self, *recipes: str, parts: dict | None = None, **request) -> ConvertResult:
        wanted = {"targets": ("small",), "recipes": recipes or ("int8",), "out": self.out} | request
        made = dataclasses.replace(small_parts(self.cache, self.target, verifier=self.verifier), **(parts or {}))
        self.notes = Notes()
        return convert(ConvertRequest("small", **wanted), self.notes, parts=made)

    def fresh(self) -> None:
        """Forget calls and faults, as a new process would."""
        self.target, self.verifier = SmallTarget(), SmallVerifier()

    def published(self) -> list[str]:
        return sorted(path.name for path in self.out.glob("[!.]*"))

    def stages(self) -> list[str]:
        return sorted(path.name.rpartition("-")[0] for path in self.cache.glob("*/*-*") if path.is_dir())


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_every_recipe_becomes_a_whole_bundle_from_one_lowering(desk):
    result = desk.convert(*ALL)
    assert result.exit_code == 0 and [report.recipe for report in result.bundles] == list(ALL)
    assert desk.published() == sorted(f"small-small-{recipe}" for recipe in ALL)
    assert desk.target.calls.count("lower") == 1
    for report in result.bundles:
        manifest = Bundle.open(report.path, full_check=True).manifest
        assert (manifest.name, manifest.target, manifest.recipe["name"]) == ("small", "small", report.recipe)
        assert manifest.fidelity == report.fidelity
        assert manifest.bits_per_weight == pytest.approx(manifest.recipe["promised_bits_per_weight"], rel=0.01)


def test_figures_are_of_the_written_files(desk):
    by_recipe = {report.recipe: report for report in desk.convert(*ALL).bundles}
    kl = {recipe: by_recipe[recipe].fidelity.kl_mean for recipe in ALL}
    assert kl["fp32"] == 0 and 0 < kl["fp16"] < kl["int8"] < kl["int4-g32"]
    assert {recipe: by_recipe[recipe].verdict for recipe in ALL} == {"fp32": "pass", "fp16": "pass", "int8": "pass", "int4-g32": "reported"}
    sizes = [by_recipe[recipe].bytes for recipe in ALL]
    assert sizes == sorted(sizes, reverse=True)


def test_json_has_the_fields_others_rely_on(desk):
    data = json.loads(json.dumps(desk.convert("int8").as_dict(), allow_nan=False))
    [entry] = data["bundles"]
    for key in ("path", "target", "recipe", "bytes", "bits_per_weight", "kl_mean", "top1_agreement", "perplexity_ratio", "verdict"):
        assert entry[key] is not None
    assert "error" not in data and entry["path"] == str(desk.out / "small-small-int8")


def test_after_success_only_the_float_model_stays_in_the_cache(desk):
    desk.convert("int8")
    assert desk.stages() == ["lowered-small"]


def test_a_second_recipe_starts_from_the_cached_float_model(desk):
    desk.convert("int8")
    desk.fresh()
    assert desk.convert("fp16").exit_code == 0
    assert "lower" not in desk.target.calls and "quantize fp16" in desk.target.calls


def test_a_damaged_float_model_is_made_again(desk):
    desk.convert("int8")
    [lowered] = desk.cache.glob("*/lowered-small-*/float.npz")
    lowered.write_bytes(lowered.read_bytes()[:-1])
    desk.fresh()
    assert desk.convert("fp16").exit_code == 0
    assert desk.target.calls.count("lower") == 1


@pytest.mark.parametrize("change", ["context", "tools", "checkpoint"])
def test_anything_that_decides_the_graph_makes_another_one(desk, change):
    desk.convert("int8")
    desk.fresh()
    parts, request = {}, {}
    if change == "tools":
        desk.target.version = "2"
    elif change == "context":
        request = {"context_length": 1024}
    else:
        parts = {"read_checkpoint": lambda *_: small_checkpoint(seed=2)}
    desk.convert("fp16", parts=parts, **request)
    assert desk.target.calls.count("lower") == 1


def test_the_same_conversion_again_changes_nothing(desk):
    first = desk.convert(*ALL)
    before = {path: path.stat().st_mtime_ns for path in desk.out.rglob("*")}
    desk.fresh()
    again = desk.convert(*ALL)
    assert set(desk.target.calls) == {"check"} and again.exit_code == 0
    assert [report.is_new for report in again.bundles] == [False] * 4
    assert [dataclasses.replace(report, is_new=True) for report in again.bundles] == list(first.bundles)
    assert {path: path.stat().st_mtime_ns for path in desk.out.rglob("*")} == before


def test_only_the_missing_bundle_is_made(desk):
    desk.convert("int8")
    desk.fresh()
    result = desk.convert("int8", "fp16")
    assert [report.is_new for report in result.bundles] == [False, True]
    assert "quantize int8" not in desk.target.calls


def test_a_damaged_bundle_is_not_taken_for_done(desk):
    desk.convert("int8")
    path = desk.out / "small-small-int8/model.npz"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(UsageError, match="--force"):
        desk.convert("int8")
    assert desk.convert("int8", force=True).exit_code == 0
    Bundle.open(desk.out / "small-small-int8", full_check=True)


@pytest.mark.parametrize("change", [{"context_length": 512}, {"parts": {"read_checkpoint": lambda *_: small_checkpoint(seed=2)}}])
def test_another_conversion_of_that_name_needs_force(desk, change):
    desk.convert("int8")
    desk.fresh()
    with pytest.raises(UsageError, match="--force"):
        desk.convert("int8", **change)
    assert desk.target.calls == ["check"], "refused before any work"
    assert desk.convert("int8", force=True, **change).exit_code == 0


def test_a_bundle_that_was_not_verified_is_not_enough_when_verification_is_asked_for(desk):
    [report] = desk.convert("int8", verify=False).bundles
    assert report.verdict == "not verified" and report.fidelity is None and desk.verifier.calls == []
    assert Bundle.open(report.path).manifest.fidelity is None
    with pytest.raises(UsageError):
        desk.convert("int8")
    assert desk.convert("int8", verify=False).bundles[0].is_new is False


def test_force_makes_it_again(desk):
    desk.convert("int8")
    desk.fresh()
    assert desk.convert("int8", force=True).bundles[0].is_new
    assert "quantize int8" in desk.target.calls


# --- refusals before work


def test_everything_is_checked_before_any_work(desk):
    with pytest.raises(UsageError, match="cannot rotate"):
        desk.convert("int8", "int8-hadamard")
    assert set(desk.target.calls) == {"check"}
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


# --- failures at work


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


def test_a_failed_gate_publishes_nothing_and_keeps_the_refused_bundle(desk):
    result = desk.convert("int4-g32", "fp16", max_kl=0.0005)
    refused, published = result.bundles
    assert result.exit_code == 6 and isinstance(refused.error, FidelityError) and refused.verdict == "fail"
    assert desk.published() == ["small-small-fp16"] and published.verdict == "pass"
    assert refused.path == desk.out / ".refused/small-small-int4-g32"
    report = json.loads((refused.path / "report.json").read_text())
    assert report["fidelity"]["kl_mean"] == refused.fidelity.kl_mean > 0.0005 and report["error"]["code"] == 6
    assert Bundle.open(refused.path, full_check=True).manifest.fidelity.verdict == "fail"


def test_a_gate_that_holds_publishes(desk):
    """Must-fail twin: the same recipe under a gate it can hold."""
    [report] = desk.convert("int4-g32", max_kl=0.5).bundles
    assert report.verdict == "pass" and Bundle.open(report.path).manifest.fidelity.gates == {"kl_mean": 0.5}


def test_the_fix_of_a_failed_gate_works_and_measures_nothing_again(desk):
    [refused] = desk.convert("int4-g32", max_kl=0.0005).bundles
    accepted = float(refused.error.fix.split("--max-kl ")[1].split()[0])
    assert refused.fidelity.kl_mean <= accepted <= refused.fidelity.kl_mean * 1.11
    desk.fresh()
    assert desk.convert("int4-g32", max_kl=accepted, resume=True).exit_code == 0
    assert desk.target.calls == ["check", "assemble int4-g32"] and desk.verifier.calls == []


def test_a_gate_that_max_kl_cannot_save_does_not_advise_it(desk):
    desk.verifier.distort = lambda figures: dataclasses.replace(figures, greedy_tokens_equal=63)
    [refused] = desk.convert("fp32").bundles
    assert "greedy_tokens_equal 63" in refused.error.why and "--max-kl" not in refused.error.fix


@pytest.mark.parametrize("recipe", ["fp32", "int8", "int4-g32"])
def test_figures_that_are_no_numbers_never_pass(desk, recipe):
    desk.verifier.distort = lambda figures: dataclasses.replace(figures, kl_mean=math.nan, max_abs_logit_error=math.nan, verdict="pass")
    result = desk.convert(recipe)
    assert result.exit_code == 6 and desk.published() == []
    assert json.loads(json.dumps(result.as_dict(), allow_nan=False))["bundles"][0]["kl_mean"] is None
    json.loads((result.bundles[0].path / "report.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize(("asked", "done"), [("int4-g32", "int8"), ("int8", "fp32"), ("int8", "int4-g32")])
def test_a_target_that_carries_out_another_recipe_is_found_by_bits_per_weight(desk, asked, done):
    desk.target.carries_out = lambda recipe: load_recipe(done)
    [report] = desk.convert(asked, verify=False).bundles
    assert report.verdict == "fail" and "bits per weight" in report.error.why and report.error.exit_code == 1
    assert desk.published() == [] and (desk.out / f".refused/small-small-{asked}/report.json").is_file()


def test_a_full_disk_at_work_is_a_budget_error_and_resumes(desk):
    import errno

    desk.target.fail_on["assemble int8"] = OSError(errno.ENOSPC, "No space left on device")
    result = desk.convert("int8")
    assert result.exit_code == 3 and "--resume" in result.bundles[0].error.fix and desk.published() == []
    desk.fresh()
    assert desk.convert("int8", resume=True).exit_code == 0
    assert desk.target.calls == ["check", "assemble int8"]


# --- resume


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


def test_the_pipeline_itself_loads_no_heavy_library(tmp_path):
    import subprocess
    import sys

    heavy = ("torch", "numpy", "transformers", "rich")
    code = f"import sys, converters.pipeline, converters.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_error_names_what_why_and_fix(desk):
    desk.target.fail_on["quantize int8"] = RuntimeError("kernel exploded")
    [error] = desk.convert("int8").errors
    assert isinstance(error, ToolkitError) and len(str(error).splitlines()) == 3
