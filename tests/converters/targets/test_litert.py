"""What the LiteRT target refuses before any work."""

from __future__ import annotations

import pytest

from converters.recipe import load_recipe
from converters.targets.base import ConvertOptions
from converters.targets.litert import TARGET
from tests.converters.small_model import small_checkpoint
from toolkit.errors import UsageError


@pytest.mark.parametrize(("context_length", "prefill_lengths"), [(127, (16,)), (32, (16,))])
def test_a_context_shorter_than_a_chunk_of_the_prompt_is_refused(context_length: int, prefill_lengths: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=f"--context {context_length} is too short for LiteRT") as caught:
        TARGET.check(small_checkpoint(), [load_recipe("int8")], ConvertOptions(context_length, prefill_lengths))
    assert "--context 128" in caught.value.fix


def test_the_lean_path_needs_less_memory_than_working_side_by_side() -> None:
    checkpoint = small_checkpoint()
    lean, quick = (TARGET.estimate(checkpoint, ConvertOptions(is_lean=is_lean)) for is_lean in (True, False))
    assert lean.peak_memory_bytes < quick.peak_memory_bytes
    assert lean.disk_bytes == quick.disk_bytes
