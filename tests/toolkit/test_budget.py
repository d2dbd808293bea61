from __future__ import annotations

import math
from typing import Any

import pytest

from toolkit.budget import Budget
from toolkit.errors import UsageError


def test_memory_is_read_with_its_unit() -> None:
    assert Budget(memory="1.5GiB").max_resident_bytes == 3 * 2**29
    assert Budget(memory=1000).max_resident_bytes == 1000
    assert Budget().max_resident_bytes is None


NOTHING = [{"memory": "2GB"}, {"memory": 0}, {"seconds": 0}, {"seconds": -1.0}, {"seconds": math.nan}, {"tokens": 0}]


@pytest.mark.parametrize("limits", NOTHING)
def test_a_budget_that_allows_nothing_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Budget(**limits)
