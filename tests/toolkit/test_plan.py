from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toolkit.small_manifest import small_manifest
from toolkit.budget import Budget
from toolkit.bundle import Bundle
from toolkit.device.cores import Cores
from toolkit.device.profile import Device
from toolkit.errors import BackendUnavailableError, BudgetError, UsageError
from toolkit.free_memory import FreeMemory
from toolkit.memory import estimate_memory
from toolkit.plan import PlanRefused, make_plan

MIB = 2**20
SPEC = {"vocab_size": 50_000, "hidden_size": 576, "n_heads": 9, "n_kv_heads": 3, "head_dim": 64, "layer_types": ["full"] * 30}
PHONE = Device(
    name="phone",
    system="android",
    machine="aarch64",
    total_memory_bytes=8192 * MIB,
    free_memory=FreeMemory(2048 * MIB, "free memory"),
    cores=Cores(8, 8, 4, (4, 5, 6, 7)),
    isa=("neon", "lse"),
)


def bundle(name: str = "small-litert-int8", *, weights: int = 135 * MIB, **changes: Any) -> Bundle:
    """Only the manifest: planning reads no file."""
    fields: dict[str, Any] = {"spec": SPEC, "memory": {"weights_bytes": weights}, "context_length": 4096, **changes}
    return Bundle(Path(name), small_manifest(**fields))


def with_free(n_bytes: int) -> Device:
    return replace(PHONE, free_memory=FreeMemory(n_bytes, "free memory"))


def need(context_length: int) -> int:
    return estimate_memory(bundle().manifest, context_length=context_length).peak_rss_bytes


def test_the_smallest_context_that_holds_the_work_is_taken() -> None:
    assert [make_plan(bundle(), PHONE, expected_tokens=n).context_length for n in (1, 64, 65, 700, 9999)] == [64, 64, 128, 704, 4096]
    assert make_plan(bundle(), PHONE).context_length == 512
    assert make_plan(bundle(), PHONE, context_length=1000).context_length == 1000


def test_threads_are_the_big_cores_and_the_process_keeps_to_them() -> None:
    plan = make_plan(bundle(), PHONE)
    assert (plan.threads, plan.cpus) == (4, (4, 5, 6, 7))
    assert make_plan(bundle(), PHONE, threads=6).cpus == (), "more threads than big cores need the small ones"


def test_the_context_may_grow_as_far_as_memory_allows() -> None:
    plan = make_plan(bundle(), with_free(need(1024)), expected_tokens=512)
    assert (plan.context_length, plan.max_context_length) == (512, 1024)
    assert make_plan(bundle(), PHONE).max_context_length == 4096


def test_without_stated_work_a_smaller_context_is_taken_before_it_is_refused() -> None:
    plan = make_plan(bundle(), with_free(need(256)))
    assert (plan.context_length, plan.max_context_length, plan.fits) == (256, 256, True)
    with pytest.raises(BudgetError):
        make_plan(bundle(), with_free(need(256)), expected_tokens=512)


def test_the_limit_is_exact_to_the_byte() -> None:
    assert make_plan(bundle(), with_free(need(1024)), context_length=1024).fits
    with pytest.raises(BudgetError):
        make_plan(bundle(), with_free(need(1024) - 1), context_length=1024)


@settings(max_examples=50, deadline=None)
@given(st.integers(64, 4096), st.integers(1, 900 * MIB))
def test_every_setting_a_refusal_names_does_fit(context_length: int, free: int) -> None:
    try:
        assert make_plan(bundle(), with_free(free), context_length=context_length).estimate.peak_rss_bytes <= free
    except PlanRefused as refused:
        assert need(context_length) > free and "--force" in refused.fix
        if "--context " in refused.fix:
            named = int(refused.fix.partition("--context ")[2].split()[0])
            assert make_plan(bundle(), with_free(free), context_length=named).fits
            larger = named + 64
            assert larger >= context_length or need(larger) > free, "and it is the largest that does"
        else:
            assert need(min(64, context_length)) > free or context_length <= 64


def test_the_budget_counts_what_the_process_holds_already() -> None:
    budget = Budget(memory=need(512) + 50 * MIB)
    assert make_plan(bundle(), PHONE, budget, context_length=512, resident_bytes=50 * MIB).fits
    with pytest.raises(BudgetError, match="memory budget") as caught:
        make_plan(bundle(), PHONE, budget, context_length=512, resident_bytes=51 * MIB)
    assert "--max-memory" in caught.value.fix


def test_the_tightest_limit_is_the_one_that_is_named() -> None:
    with pytest.raises(BudgetError) as caught:
        make_plan(bundle(), with_free(100 * MIB), Budget(memory="300MiB"))
    assert "free memory leaves 100 MiB" in caught.value.why


def test_a_smaller_recipe_is_offered_when_it_would_fit() -> None:
    large = bundle("large-litert-fp32", weights=540 * MIB, bits_per_weight=32.0)
    with pytest.raises(BudgetError) as caught:
        make_plan(large, with_free(400 * MIB), context_length=64)
    assert "--recipe int4-g32" in caught.value.fix


def test_an_address_space_limit_counts_virtual_memory() -> None:
    run = {"context_length": 512, "is_first_start": False, "peak_rss_bytes": 200 * MIB, "anonymous_bytes": MIB, "mapped_bytes": MIB}
    runs = [{**run, "address_space_bytes": 600 * MIB}, {**run, "context_length": 1024, "address_space_bytes": 700 * MIB}]
    measured = bundle(memory={"weights_bytes": 135 * MIB, "measured": {"machine": "x86_64", "threads": 2, "runs": runs}})
    limited = replace(PHONE, free_address_space=FreeMemory(650 * MIB, "the address space limit"))
    assert make_plan(measured, limited, context_length=512).fits
    with pytest.raises(BudgetError, match="700 MiB of address space"):
        make_plan(measured, limited, context_length=1024)


def test_bundles_that_cannot_run_here_are_passed_over_with_the_reason() -> None:
    apple = bundle("small-mlx-int8", target="mlx")
    plan = make_plan([apple, bundle()], PHONE)
    assert plan.bundle.name == "small-litert-int8"
    assert plan.rejected == (("small-mlx-int8", "the mlx engine is not packaged for android"),)
    with pytest.raises(BackendUnavailableError, match="runs on phone") as caught:
        make_plan(apple, PHONE)
    assert "--to litert" in caught.value.fix


def test_a_core_without_atomics_runs_no_litert() -> None:
    board = replace(PHONE, system="linux", isa=("neon",), name="board")
    with pytest.raises(BackendUnavailableError, match="LSE") as caught:
        make_plan(bundle(), board)
    assert "--to onnx,gguf" in caught.value.fix
    assert make_plan(bundle(), replace(board, isa=None)).fits, "what is not known is not held against it"


def test_forced_the_first_bundle_that_runs_is_planned() -> None:
    plan = make_plan([bundle("a"), bundle("b")], with_free(MIB), force=True)
    assert (plan.bundle.name, plan.fits, plan.is_forced) == ("a", False, True)
    assert not make_plan(bundle(), PHONE, force=True).is_forced, "what fits needs no force"


def test_a_device_that_tells_nothing_is_limited_by_the_budget_alone() -> None:
    unknown = replace(PHONE, free_memory=None)
    assert make_plan(bundle(), unknown).available_bytes is None
    with pytest.raises(BudgetError):
        make_plan(bundle(), unknown, Budget(memory="1MiB"))


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to plan"):
        make_plan([], PHONE)
    with pytest.raises(UsageError, match="context"):
        make_plan(bundle(), PHONE, context_length=4097)
    with pytest.raises(UsageError, match="cannot run.*\n.*a bundle for mlx; litert runs litert"):
        make_plan(bundle(target="mlx"), PHONE, backend="litert")


@pytest.mark.parametrize(("options", "named"), [({"threads": -3}, "threads"), ({"threads": 0}, "threads"), ({"threads": 9}, "8 CPUs")])
def test_threads_the_device_has_not_are_refused(options: dict[str, int], named: str) -> None:
    with pytest.raises(UsageError, match="threads") as caught:
        make_plan(bundle(), PHONE, **options)
    assert named in str(caught.value)


@pytest.mark.parametrize("expected_tokens", [-5, 0])
def test_a_job_of_no_tokens_is_refused(expected_tokens: int) -> None:
    with pytest.raises(UsageError, match="no job"):
        make_plan(bundle(), PHONE, expected_tokens=expected_tokens)


@settings(max_examples=100, deadline=None)
@given(
    context_length=st.integers(64, 4096),
    free=st.integers(MIB, 900 * MIB),
    budget=st.integers(MIB, 900 * MIB),
    held=st.sampled_from([0, 30 * MIB]),
)
def test_no_fix_leads_to_the_next_refusal(context_length: int, free: int, budget: int, held: int) -> None:
    """With two limits at once; the twin before it looked at one of them only."""

    def planned(**changes: Any) -> Any:
        asked = {"context_length": context_length, "resident_bytes": held, **changes}
        limits = Budget(memory=asked.pop("memory", budget))
        return make_plan(bundle(), with_free(asked.pop("free", free)), limits, **asked)

    try:
        planned()
    except PlanRefused as refused:
        for fix in refused.fix.split(", or "):
            numbers = fix.split()
            if fix.startswith("use --context"):
                assert planned(context_length=int(numbers[2])).fits
            elif fix.startswith("allow --max-memory"):
                assert planned(memory=numbers[2]).fits
            elif fix.startswith("free "):
                more = free + int(1.01 * float(numbers[1]) * {"B": 1, "KiB": 2**10, "MiB": MIB}[numbers[2].rstrip(",")])
                also = {"memory": numbers[6].rstrip(",")} if "--max-memory" in fix else {}
                assert planned(free=more, **also).fits


def test_another_backend_is_only_named_where_there_is_one() -> None:
    with pytest.raises(UsageError, match="cannot run") as caught:
        make_plan(bundle(target="coreml"), PHONE, backend="litert")
    assert "--to litert" in caught.value.fix and "leave --backend out" not in caught.value.fix
