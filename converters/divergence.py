"""How far one next-token distribution is from another: the figures of a fidelity report, gathered block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
ROWS_AT_ONCE = 64  # 64 rows of a 262,144-token vocabulary are 64 MiB a temporary


def log_softmax(logits: Logits) -> Logits:
    """Row-wise log-probabilities of (n_positions, vocab_size) logits; float32, sums in float64."""
    shifted: Logits = logits - logits.max(axis=-1, keepdims=True)
    totals = np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float64)
    shifted -= np.log(totals).astype(np.float32)
    return shifted


@dataclass
class Divergence:
    """Running totals over positions.

    KL is KL(reference || candidate) in nats: the extra surprise of reading the reference's text with the candidate.
    Source: Kullback and Leibler 1951; perplexity as exp of the mean negative log-likelihood of the next token.
    """

    kl: list[float] = field(default_factory=list)
    n_top1_equal: int = 0
    max_abs_logit_error: float = 0.0
    nll: float = 0.0
    reference_nll: float = 0.0
    n_scored: int = 0

    def add(self, reference: Logits, candidate: Logits, next_ids: npt.NDArray[np.int64]) -> None:
        """Take in a block.

        Args:
            reference: (n_positions, vocab_size) float32 logits of the checkpoint.
            candidate: The same of the written model.
            next_ids: (n_positions,) the token that follows each position in the text; -1 where none does.

        Raises:
            ValueError: The shapes differ.
        """
        if reference.shape != candidate.shape or len(next_ids) != len(reference):
            raise ValueError(f"reference {reference.shape}, candidate {candidate.shape}, {len(next_ids)} next tokens")
        for start in range(0, len(reference), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            self._add_rows(reference[rows], candidate[rows], next_ids[rows])

    def add_blocks(self, blocks: Iterable[Logits], rows: Callable[[int, int], Logits], next_ids: npt.NDArray[np.int64], name: str) -> None:
        """Take in a model's answers to one text, block by block.

        Args:
            blocks: (n, vocab_size) logits of the written model, a row a token.
            rows: Gives the checkpoint's own by first row and count.
            next_ids: As `add` takes them, one a token of the text.
            name: What errors call the text.

        Raises:
            ValueError: There are more or fewer rows than tokens.
        """
        done = 0
        for block in blocks:
            self.add(rows(done, len(block)), block, next_ids[done : done + len(block)])
            done += len(block)
        if done != len(next_ids):
            raise ValueError(f"{name} has {len(next_ids)} tokens, the model answered {done}")

    def _add_rows(self, reference: Logits, candidate: Logits, next_ids: npt.NDArray[np.int64]) -> None:
        error = float(np.abs(reference - candidate).max())
        self.max_abs_logit_error = error if math.isnan(error) else max(self.max_abs_logit_error, error)
        self.n_top1_equal += int((reference.argmax(axis=-1) == candidate.argmax(axis=-1)).sum())
        wanted, got = log_softmax(reference), log_softmax(candidate)
        scored = np.flatnonzero(next_ids >= 0)
        self.reference_nll -= float(wanted[scored, next_ids[scored]].sum(dtype=np.float64))
        self.nll -= float(got[scored, next_ids[scored]].sum(dtype=np.float64))
        self.n_scored += len(scored)
        probabilities = np.exp(wanted)
        wanted -= got
        self.kl += np.einsum("ij,ij->i", probabilities, wanted, dtype=np.float64).tolist()

    @property
    def kl_mean(self) -> float:
        return float(np.mean(self.kl))

    @property
    def kl_p99(self) -> float:
        return float(np.percentile(self.kl, 99))

    @property
    def top1_agreement(self) -> float:
        return self.n_top1_equal / len(self.kl)

    @property
    def perplexity(self) -> float:
        return _perplexity(self.nll, self.n_scored)

    @property
    def reference_perplexity(self) -> float:
        return _perplexity(self.reference_nll, self.n_scored)

    def figures(self) -> dict[str, float]:
        """By the names of `Fidelity`'s fields."""
        names = ("kl_mean", "kl_p99", "top1_agreement", "perplexity", "reference_perplexity", "max_abs_logit_error")
        return {"n_tokens": len(self.kl), **{name: getattr(self, name) for name in names}}


def _perplexity(nll: float, n: int) -> float:
    try:
        return math.exp(nll / n)
    except OverflowError:
        return math.inf
