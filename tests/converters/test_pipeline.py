"""What a conversion makes: bundles, their figures and gates, and no work twice."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from converters.recipe import load_recipe
from tests.converters.desk import ALL, Desk
from tests.converters.small_model import small_checkpoint
from toolkit.bundle import Bundle
from toolkit.errors import FidelityError, UsageError


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
    assert desk.target.calls == ["check"] * 4 and again.exit_code == 0
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


def test_the_pipeline_itself_loads_no_heavy_library(tmp_path):
    import subprocess
    import sys

    heavy = ("torch", "numpy", "transformers", "rich")
    code = f"import sys, converters.pipeline, converters.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
