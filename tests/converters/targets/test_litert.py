"""What the LiteRT target refuses before any work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from converters.checkpoint import Checkpoint
from converters.recipe import load_recipe
from converters.resources import FreeMemory, choose_memory_path
from converters.targets.base import ConvertOptions
from converters.targets.litert import TARGET
from tests.converters.small_model import RandomTensors, small_checkpoint
from toolkit.errors import BudgetError, UsageError

INT8 = load_recipe("int8")
GPTQ_PEAK_BYTES = 5_370_000_000  # of Gemma 3 270M, whose memory goes to its table: 4.82e9 in the child, 0.55e9 beside it


@pytest.mark.parametrize(("context_length", "prefill_lengths"), [(127, (16,)), (32, (16,))])
def test_a_context_shorter_than_a_chunk_of_the_prompt_is_refused(context_length: int, prefill_lengths: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=f"--context {context_length} is too short for LiteRT") as caught:
        TARGET.check(small_checkpoint(), [load_recipe("int8")], ConvertOptions(context_length, prefill_lengths))
    assert "--context 128" in caught.value.fix


def test_the_lean_path_needs_less_memory_than_working_side_by_side() -> None:
    checkpoint = small_checkpoint()
    lean, quick = (TARGET.estimate(checkpoint, [INT8], ConvertOptions(is_lean=is_lean)) for is_lean in (True, False))
    assert lean.peak_memory_bytes < quick.peak_memory_bytes
    assert lean.disk_bytes == quick.disk_bytes


def gemma_270m() -> Checkpoint:
    """Its sizes, and no weights."""
    small = small_checkpoint()
    sizes = {"hidden_size": 640, "intermediate_size": 2048, "n_layers": 18, "n_heads": 4, "n_kv_heads": 1, "head_dim": 256}
    spec = replace(small.spec, **sizes, vocab_size=262144, layer_types=("full",) * 18)
    return replace(small, spec=spec, tensors=RandomTensors(spec, seed=1))


def test_calibration_is_counted_and_only_for_recipes_that_are_calibrated() -> None:
    checkpoint = gemma_270m()
    plain, gptq = (TARGET.estimate(checkpoint, [load_recipe(name)], ConvertOptions(is_lean=True)) for name in ("int4-g32", "int4-g32-gptq"))
    assert plain.peak_memory_bytes < GPTQ_PEAK_BYTES <= gptq.peak_memory_bytes < 1.1 * GPTQ_PEAK_BYTES
    assert gptq.warm_peak_memory_bytes is not None
    assert gptq.warm_peak_memory_bytes >= GPTQ_PEAK_BYTES, "a lowered model in the cache changes nothing"


def test_max_memory_refuses_a_calibration_that_does_not_fit() -> None:
    checkpoint, recipes = gemma_270m(), [load_recipe("int4-g32-gptq")]
    room = FreeMemory(64 * 2**30, "free memory")
    with pytest.raises(BudgetError, match="--max-memory leaves 4 GiB"):
        choose_memory_path(
            lambda options: TARGET.estimate(checkpoint, recipes, options),
            ConvertOptions(),
            is_warm=False,
            max_memory_bytes=4 * 2**30,
            free=room,
            hard=None,
        )
