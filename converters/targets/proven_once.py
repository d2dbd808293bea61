"""What is proven of a checkpoint's tokenizer and template, once for all its recipes: a proof takes seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from toolkit.errors import FidelityError, FormatError

Proof = TypeVar("Proof")


class ProvenOnce(Generic[Proof]):
    """The last proof asked for. What is wrong with a checkpoint is kept like a proof: asking again would say the same."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # recipes are in work side by side
        self._kept: dict[Hashable, Proof | FormatError | FidelityError] = {}

    def get(self, key: Hashable, prove: Callable[[], Proof]) -> Proof:
        """The proof of a key, made if it is not the last one that was asked for.

        Raises:
            FormatError, FidelityError: What `prove` raised, now or before. Any other error of it is not kept: it may have been the
                machine's.
        """
        with self._lock:
            if key not in self._kept:
                self._kept = {key: _answer(prove)}
            answer = self._kept[key]
        if isinstance(answer, FormatError | FidelityError):
            raise answer
        return answer


def _answer(prove: Callable[[], Proof]) -> Proof | FormatError | FidelityError:
    try:
        return prove()
    except (FormatError, FidelityError) as error:
        return error
