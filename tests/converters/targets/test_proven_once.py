"""A proof is made once for all recipes of a checkpoint, whatever came of it."""

from __future__ import annotations

import threading
import time

import pytest

from converters.targets.proven_once import ProvenOnce
from toolkit.errors import BudgetError, FidelityError, FormatError, ToolkitError


class Prover:
    """Counts how often it is asked; raises what it was told to."""

    def __init__(self, error: ToolkitError | None = None) -> None:
        self.error, self.n_asked = error, 0

    def __call__(self) -> str:
        self.n_asked += 1
        time.sleep(0.02)
        if self.error is not None:
            raise self.error
        return "proof"


def test_recipes_side_by_side_share_one_proof() -> None:
    proven, prove = ProvenOnce[str](), Prover()
    threads = [threading.Thread(target=proven.get, args=("a", prove)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (proven.get("a", prove), prove.n_asked) == ("proof", 1)


def test_another_checkpoint_is_proven_anew() -> None:
    proven, prove = ProvenOnce[str](), Prover()
    proven.get("a", prove)
    proven.get("b", prove)
    assert prove.n_asked == 2


@pytest.mark.parametrize("kind", [FormatError, FidelityError])
def test_what_is_wrong_with_a_checkpoint_is_said_again_without_work(kind: type[ToolkitError]) -> None:
    proven, prove = ProvenOnce[str](), Prover(kind("no", fix="other"))
    for _ in range(3):
        with pytest.raises(kind):
            proven.get("a", prove)
    assert prove.n_asked == 1


def test_what_may_be_the_machines_fault_is_tried_again() -> None:
    proven, prove = ProvenOnce[str](), Prover(BudgetError("killed", fix="again"))
    for _ in range(2):
        with pytest.raises(BudgetError):
            proven.get("a", prove)
    prove.error = None
    assert (proven.get("a", prove), prove.n_asked) == ("proof", 3)
