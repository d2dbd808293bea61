"""--fit: the most faithful bundle that is small enough, found by measuring."""

import dataclasses
import json

import pytest

from converters.fit import TRIALS, FitResult, fit
from converters.fit_candidates import made_to_measure, project_recipes
from converters.frontier import Point, chosen
from converters.pipeline import options_of
from converters.recipe import load_recipe, undecodable
from converters.request import BundleReport, ConvertRequest
from converters.targets.litert import TARGET as LITERT
from tests.converters.desk import ALL, Desk
from tests.converters.small_model import small_checkpoint, small_parts
from toolkit.bundle import Bundle
from toolkit.errors import BudgetError, FidelityError, UsageError
from toolkit.manifest import Fidelity


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


@pytest.fixture
def sizes(tmp_path):
    """Recipe -> bytes of its bundle."""
    return {report.recipe: report.bytes for report in Desk(tmp_path / "sizes").convert(*ALL).bundles}


def search(desk: Desk, limit_bytes: int, recipes=ALL, **request) -> FitResult:
    wanted = ConvertRequest("small", **({"targets": ("small",), "out": desk.out} | request))
    parts = small_parts(desk.cache, desk.target, verifier=desk.verifier)
    return fit(wanted, limit_bytes, recipes, desk.notes, parts=parts)


def test_the_most_faithful_recipe_that_fits_is_published(desk, sizes):
    for limit, best in ((sizes["int8"], "int8"), (sizes["int8"] - 1, "int4-g32"), (sizes["fp16"] + 4000, "fp16")):
        desk.fresh()
        found = search(desk, limit, force=True)
        [report] = found.result.bundles
        assert (report.recipe, report.path, found.result.exit_code) == (best, desk.out / f"small-small-{best}", 0)
        bundle = Bundle.open(report.path, full_check=True)
        assert bundle.bytes <= limit and bundle.manifest.fidelity.kl_mean == report.fidelity.kl_mean


def test_what_a_plain_conversion_would_write_is_what_is_published(desk, sizes):
    [report] = search(desk, sizes["int8"]).result.bundles
    desk.fresh()
    assert desk.convert("int8").bundles[0].is_new is False and report.recipe == "int8"


def test_files_that_are_clearly_too_large_are_not_even_made(desk, sizes):
    search(desk, sizes["int8"])
    assert [call for call in desk.target.calls if call.startswith("quantize")] == ["quantize int4-g32", "quantize int8"]
    assert any("would not fit" in note for note in desk.notes.texts)


def test_nothing_but_bundles_and_the_plot_is_left(desk, sizes):
    found = search(desk, sizes["int8"])
    assert sorted(path.name for path in desk.out.iterdir()) == ["small-fit.png", "small-fit.svg", "small-small-int8"]
    assert [path.read_bytes()[:4] for path in found.plots] == [b"<?xm", b"\x89PNG"]


def test_the_frontier_lists_what_was_measured_and_marks_the_choice(desk, sizes):
    data = json.loads(json.dumps(search(desk, sizes["int8"] + 8).as_dict(), allow_nan=False))
    assert [(entry["recipe"], entry["fits"], entry["is_chosen"]) for entry in data["frontier"]] == [
        ("int4-g32", True, False),
        ("int8", True, True),
    ]
    assert all(entry["bytes"] == sizes[entry["recipe"]] and entry["kl_mean"] > 0 for entry in data["frontier"])
    assert data["frontier"][0]["path"] is None and data["bundles"][0]["path"] == data["frontier"][1]["path"]


def test_a_search_ends_when_larger_files_do_not_help(desk):
    as_int4 = dict(load_recipe("int4-g32").rules)
    desk.target.carries_out = lambda recipe: dataclasses.replace(recipe, rules=as_int4)
    desk.target.promise = lambda checkpoint, recipe: 4.5 if recipe.name != "int4-g32" else 4.49
    found = search(desk, 10**9)
    assert [point.report.recipe for point in found.points] == ["int4-g32", "fp32", "fp16"], "the fourth is no use after two that were not"
    assert found.result.bundles[0].recipe == "int4-g32" and any("cannot help" in note for note in desk.notes.texts)


def test_nothing_is_tried_beyond_an_exact_one(desk):
    found = search(desk, 10**9, ("fp32", "fp16", "int8"))
    assert [point.report.recipe for point in found.points][-1] == found.result.bundles[0].recipe
    assert found.points[-1].kl_mean <= 1e-6


def test_a_size_that_nothing_fits_names_the_smallest(desk, sizes):
    found = search(desk, 100)
    [report] = found.result.bundles
    assert isinstance(report.error, BudgetError) and found.result.exit_code == 3
    assert "int4-g32" in report.error.why and report.error.fix.startswith(f"use --fit {-(-sizes['int4-g32'] // 10**6)}MB")
    assert not list(desk.out.glob("small-small-*"))


def test_one_candidate_that_fails_does_not_end_the_search(desk, sizes):
    desk.target.fail_on["quantize int4-g32"] = RuntimeError("no such kernel")
    [report] = search(desk, sizes["int8"]).result.bundles
    assert report.recipe == "int8" and report.error is None


def test_a_speech_models_gate_refuses_no_candidate_either(desk, sizes, monkeypatch):
    monkeypatch.setattr("converters.pipeline.SPEECH_MODEL_TYPE", "llama")  # what the small checkpoint says it is
    monkeypatch.setattr("converters.pipeline.SPEECH_GATES", {"kl_mean": 0.0})
    assert desk.convert("int4-g32").exit_code == 6, "the gate is one"
    [report] = search(desk, sizes["int4-g32"]).result.bundles
    assert (report.recipe, report.verdict, report.error) == ("int4-g32", "reported", None)


def test_a_limit_on_kl_holds_for_the_choice(desk, sizes):
    found = search(desk, sizes["int4-g32"], max_kl=1e-6)
    assert isinstance(found.result.errors[0], FidelityError) and found.result.exit_code == 6
    assert not list(desk.out.glob("small-small-*"))


def test_what_a_limit_on_kl_offers_can_help(desk, sizes):
    def fix(limit_bytes: int, recipes=ALL) -> str:
        desk.fresh()
        [error] = search(desk, limit_bytes, recipes, max_kl=1e-9).result.errors
        return error.fix

    size, recipes, kl = "allow a larger file with --fit", "leave --recipe out", "allow a larger --max-kl"
    assert fix(sizes["int4-g32"], None) == f"{size}, or {kl}"
    assert fix(sizes["int4-g32"]) == f"{size}, or {recipes}, or {kl}"
    assert fix(sizes["int8"] - 1, ("int4-g32", "int8")) == f"{size}, or {recipes}, or {kl}", "int8 was made, and is a byte too large"
    assert fix(10**6, ("int4-g32", "int8")) == f"{recipes}, or {kl}"
    assert fix(10**6, None) == kl


@pytest.mark.parametrize(("limit", "request_"), [(0, {}), (-5, {}), (10**6, {"verify": False})])
def test_a_search_that_makes_no_sense_is_refused(desk, limit, request_):
    with pytest.raises(UsageError) as caught:
        search(desk, limit, **request_)
    assert len(str(caught.value).splitlines()) == 3 and not desk.target.calls


def test_an_interrupted_search_goes_on_from_what_it_measured(desk, sizes):
    desk.target.fail_on["quantize int8"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        search(desk, sizes["int8"])
    assert (desk.out / TRIALS).is_dir() and not list(desk.out.glob("small-*"))
    desk.fresh()
    assert search(desk, sizes["int8"], resume=True).result.bundles[0].recipe == "int8"
    assert "quantize int4-g32" not in desk.target.calls and not (desk.out / TRIALS).exists()


def test_a_bundle_that_is_there_already_is_the_choice(desk, sizes):
    desk.convert("int8")
    before = (desk.out / "small-small-int8/manifest.json").stat().st_mtime_ns
    desk.fresh()
    found = search(desk, sizes["int8"])
    assert found.result.exit_code == 0 and found.result.bundles[0].is_new is False and found.points[-1].is_chosen
    assert (desk.out / "small-small-int8/manifest.json").stat().st_mtime_ns == before
    assert not (desk.out / TRIALS).exists()


def test_what_is_in_the_way_costs_no_second_search(desk, sizes):
    desk.convert("int8", context_length=1024)
    desk.fresh()
    found = search(desk, sizes["int8"])
    assert found.result.exit_code == 2 and "--force" in found.result.errors[0].fix
    desk.fresh()
    assert search(desk, sizes["int8"], force=True, resume=True).result.exit_code == 0
    assert not any(call.startswith("quantize") for call in desk.target.calls) and not (desk.out / TRIALS).exists()


def test_of_two_as_faithful_the_smaller_is_chosen():
    points = [point(100, 0.0200), point(200, 0.0199), point(300, 0.5)]
    assert chosen(points).report.bytes == 100
    assert chosen([point(100, 0.0200), point(200, 0.0190)]).report.bytes == 200
    assert chosen([point(100, 0.5, fits=False)]) is None


def point(n_bytes: int, kl: float, *, fits: bool = True) -> Point:
    figures = Fidelity(2048, kl, kl, 0.9, 20.0, 20.0, 0.1, 0, 0, "reported")
    return Point(BundleReport("x", "small", f"r{n_bytes}", None, n_bytes, 4.5, figures, "reported"), fits)


def test_recipes_made_for_a_search_have_names_that_say_what_they_do():
    for target in ("litert", "mlx", "onnx", "gguf"):
        assert not [recipe.name for recipe in project_recipes(target) if undecodable(recipe)]
    assert {"int3-g32", "int6-g32"} <= {recipe.name for recipe in project_recipes("mlx")}


def test_a_mix_takes_what_the_size_leaves(monkeypatch):
    monkeypatch.setattr(type(LITERT), "check", lambda *asked: None)
    checkpoint = small_checkpoint()
    n = checkpoint.spec.n_parameters
    options = options_of(ConvertRequest("small"), checkpoint)
    [made] = made_to_measure(LITERT, checkpoint, options, int(n * 7.03 / 8), [])
    assert made.recipe.name == "mixed-7bpw" and made.recipe.promotion.bits_per_weight == 7.0
    assert not undecodable(made.recipe) and made.bits_per_weight <= 7.0
    assert made_to_measure(LITERT, checkpoint, options, int(n * 1.5 / 8), []) == [], "its rules need more than that"
