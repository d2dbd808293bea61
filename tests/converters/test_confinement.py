"""A confined process is ended, or refused memory, beyond what it had; work inside the bounds goes through."""

from __future__ import annotations

import sys

import pytest

from converters.child import ChildDeathError, run_in_child
from toolkit.errors import ToolkitError

JOBS = "tests.converters.child_jobs"


def test_time_beyond_the_bound_ends_the_process() -> None:
    with pytest.raises(ChildDeathError) as caught:
        run_in_child(f"{JOBS}:count_for_ever", {"cpu_s": 0.2}, what="count")
    assert caught.value.cause == "SIGXCPU"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much memory is in use")
def test_memory_beyond_the_bound_is_refused_and_memory_within_it_is_not() -> None:
    assert run_in_child(f"{JOBS}:fill", {"n_bytes": 2**26, "memory_bytes": 2**28}, what="fill") == {"n_bytes": 2**26}
    with pytest.raises(ToolkitError) as caught:
        run_in_child(f"{JOBS}:fill", {"n_bytes": 2**29, "memory_bytes": 2**28}, what="fill")
    assert "MemoryError" in caught.value.why
