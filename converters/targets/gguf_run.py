"""Running a written GGUF file to compare its logits with the checkpoint's: in llama.cpp, or else its values in PyTorch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from converters.targets.llama_cpp import DISTRIBUTION, VERSION, LlamaModel, is_available

CHUNK = 128
# llama.cpp wants the size of the cache up front; windows and prompt of the verification are shorter.
CONTEXT_LENGTH = 1024


def runtime_name() -> str:
    """What a GGUF file is measured with on this machine, for the manifest."""
    llama_cpp = f"llama.cpp ({DISTRIBUTION} {VERSION}), KV cache in float32"
    return llama_cpp if is_available() else "PyTorch in float32, on the file's own values"


class LlamaCppScorer:
    """A GGUF file in llama.cpp.

    Raises:
        BackendUnavailableError: The library is not the build this project knows.
        EngineError: llama.cpp refuses the file.
    """

    def __init__(self, path: Path) -> None:
        self._model = LlamaModel(path, context_length=CONTEXT_LENGTH, chunk_length=CHUNK)

    def score(self, token_ids: Sequence[int]) -> Iterator[np.ndarray]:
        """Logits after each token of a window, from an empty cache, in blocks of at most `CHUNK` rows.

        Raises:
            ValueError: The window does not fit the cache.
        """
        if len(token_ids) > CONTEXT_LENGTH:
            raise ValueError(f"window of {len(token_ids)} tokens, cache of {CONTEXT_LENGTH}")
        self._model.reset()
        for start in range(0, len(token_ids), CHUNK):
            yield self._model.decode(token_ids[start : start + CHUNK], start)

    def count_greedy_equal(self, prompt_ids: Sequence[int], expected_ids: Sequence[int]) -> int:
        """Tokens of greedy generation, one decode each, that equal `expected_ids` before the first that does not."""
        logits = np.concatenate(list(self.score(prompt_ids)))[-1]
        for n_equal, expected in enumerate(expected_ids):
            if int(logits.argmax()) != expected:
                return n_equal
            logits = self._model.decode([expected], len(prompt_ids) + n_equal)[0]
        return len(expected_ids)


class ReadBackScorer:
    """The values a GGUF file holds, read by this project's own reader and run by transformers in float32.

    What this leaves out is llama.cpp's own arithmetic, which multiplies quantized weights with activations of 8 bits.
    """

    def __init__(self, path: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from converters.read.gguf import read_gguf
        from toolkit.cache import cache_directory

        with tempfile.TemporaryDirectory(prefix="gguf-", dir=cache_directory("convert")) as folder:
            read_gguf(path).write_hf(Path(folder))
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
            self._model: Any = model
            for parameter in model.parameters():  # from here on nothing is mapped from the folder
                parameter.data = parameter.data.clone()

    def score(self, token_ids: Sequence[int]) -> Iterator[np.ndarray]:
        """As `LlamaCppScorer.score`."""
        import torch

        with torch.inference_mode():
            hidden = self._model.model(input_ids=torch.tensor([list(token_ids)]), use_cache=False).last_hidden_state[0]
            cap = getattr(self._model.config, "final_logit_softcapping", None)
            for start in range(0, len(token_ids), CHUNK):
                logits = self._model.lm_head(hidden[start : start + CHUNK])
                yield (logits if cap is None else torch.tanh(logits / cap) * cap).numpy()

    def count_greedy_equal(self, prompt_ids: Sequence[int], expected_ids: Sequence[int]) -> int:
        """As `LlamaCppScorer.count_greedy_equal`; one pass over prompt and answer says the same as one decode a token."""
        logits = np.concatenate(list(self.score([*prompt_ids, *expected_ids[:-1]])))[len(prompt_ids) - 1 :]
        differs = np.flatnonzero(logits.argmax(axis=-1) != np.array(expected_ids))
        return int(differs[0]) if len(differs) else len(expected_ids)


def open_scorer(path: Path) -> LlamaCppScorer | ReadBackScorer:
    """llama.cpp if the build this project knows is installed, else PyTorch; `runtime_name` says which."""
    return LlamaCppScorer(path) if is_available() else ReadBackScorer(path)
