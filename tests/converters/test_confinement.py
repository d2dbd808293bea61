"""A confined process is ended, or refused memory, beyond what it had; work inside the bounds goes through."""

from __future__ import annotations

import sys

import pytest

from converters.child import MEMORY_LIMIT, ChildDeathError, run_in_child
from converters.template_source import death_blamed_on_template
from toolkit.errors import FormatError, ToolkitError

JOBS = "tests.converters.child_jobs"


def test_time_beyond_the_bound_ends_the_process() -> None:
    with pytest.raises(ChildDeathError) as caught:
        run_in_child(f"{JOBS}:count_for_ever", {"cpu_s": 0.2}, what="count")
    assert caught.value.cause == "SIGXCPU"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much memory is in use")
def test_memory_beyond_the_bound_is_refused_and_memory_within_it_is_not() -> None:
    assert run_in_child(f"{JOBS}:fill", {"n_bytes": 2**26, "memory_bytes": 2**28}, what="fill") == {"n_bytes": 2**26}
    with pytest.raises(ChildDeathError, match="it ran out of memory") as caught:
        run_in_child(f"{JOBS}:fill", {"n_bytes": 2**29, "memory_bytes": 2**28}, what="fill")
    assert "MemoryError" in caught.value.why and caught.value.cause == MEMORY_LIMIT


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much memory is in use")
@pytest.mark.parametrize("function", ["fill", "fill_for_template"])
def test_memory_that_a_template_fills_is_the_templates_error(function: str) -> None:
    """Whichever bound it meets first on this machine, time or memory, and whether the child says so itself or not."""
    with pytest.raises(FormatError, match="takes too much to render") as caught, death_blamed_on_template("the runtime"):
        run_in_child(f"{JOBS}:{function}", {"n_bytes": 2**29, "memory_bytes": 2**28}, what="render the chat template")
    assert caught.value.exit_code == 4 and "the runtime needs more" in caught.value.why


def test_another_death_is_not_the_templates_error() -> None:
    with pytest.raises(FormatError, match="takes too much") as caught, death_blamed_on_template("the runtime"):
        run_in_child(f"{JOBS}:count_for_ever", {"cpu_s": 0.2}, what="render")
    assert "does not end" in caught.value.why
    with pytest.raises(ToolkitError, match="KeyError") as other, death_blamed_on_template("the runtime"):
        run_in_child(f"{JOBS}:stumble", {}, what="render")
    assert not isinstance(other.value, FormatError)
