"""Counts what one engine's sessions generate, against the budget's tokens."""

from __future__ import annotations

import threading

from toolkit.errors import BudgetError


class TokenBudget:
    """How many tokens are left. All methods may be called from any thread and never wait for an engine: an event loop calls them."""

    def __init__(self, most: int | None) -> None:
        """`most` tokens over the engine's whole life; None for no limit."""
        self._most = most
        self._lock = threading.Lock()
        self._n_spent = 0

    def grant(self, n_tokens: int) -> int:
        """How many of `n_tokens` may still be generated.

        Raises:
            BudgetError: None.
        """
        if self._most is None:
            return n_tokens
        with self._lock:
            n_spent = self._n_spent
        left = self._most - n_spent
        if left < 1:
            raise BudgetError(
                "the token budget is used up",
                why=f"{n_spent} of {self._most} tokens were generated",
                fix=f"open the engine with Budget(tokens={2 * self._most}) or more",
            )
        return min(n_tokens, left)

    def spend(self, n_tokens: int) -> None:
        """Count what was generated."""
        with self._lock:
            self._n_spent += n_tokens
