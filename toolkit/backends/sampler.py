"""Choosing the next token from logits, for engines that leave the choice to the caller."""

from __future__ import annotations

import random
from typing import Any

from toolkit.backends.base import Sampling


class Sampler:
    """Top-k, then top-p, then temperature, as `Sampling` says; the same seed and logits give the same tokens on every engine."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._random = random.Random(sampling.seed)

    def pick(self, logits: Any) -> int:
        """The next token's id.

        Args:
            logits: (vocab_size,) float32 numpy array.

        Raises:
            ValueError: They are not finite: the weights are damaged, or a recipe left its number range.
        """
        best = int(logits.argmax())  # of NaN too: numpy takes the first NaN for the largest
        if not abs(float(logits[best])) < float("inf"):
            raise ValueError(f"the model computed {float(logits[best])} where a logit should be")
        return best if self.sampling.temperature == 0 else self._draw(logits)

    def _draw(self, logits: Any) -> int:
        import numpy as np

        sampling, k = self.sampling, min(self.sampling.top_k, len(logits))
        kept = np.argpartition(logits, -k)[-k:]
        kept = kept[np.lexsort((kept, -logits[kept]))]  # ties by id: partition leaves them in any order
        likely = np.cumsum(_softmax(logits[kept].astype(np.float64)))
        n_kept = int(np.searchsorted(likely, sampling.top_p * likely[-1])) + 1
        kept = kept[:n_kept]
        shares = np.cumsum(_softmax(logits[kept].astype(np.float64) / sampling.temperature))
        place = int(np.searchsorted(shares, self._random.random() * shares[-1], side="right"))
        return int(kept[min(place, len(kept) - 1)])


def _softmax(logits: Any) -> Any:
    import numpy as np

    shares = np.exp(logits - logits.max())
    return shares / shares.sum()
