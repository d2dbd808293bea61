"""Running a written model through onnxruntime-genai to compare its logits with the checkpoint's, and once through plain onnxruntime."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.targets.onnx_folder import ModelFolder, read_folder
from toolkit.errors import FidelityError, FormatError

CHUNK = 128  # tokens of a window at a time: their logits are 128 MiB with a vocabulary of 262,144
N_PLAIN_CHUNKS = 2  # the second one reads a KV cache
# Plain onnxruntime runs the same kernels on the same file and, chunk for chunk, gives the same logits but for the order of sums,
# which int8 activations may round apart. (In chunks of other lengths Gemma's int8 logits differ by a third of their spread.)
PLAIN_TOLERANCE = 0.02
Logits = npt.NDArray[np.float32]


class OnnxModel:
    """A model folder opened by onnxruntime-genai.

    Args:
        folder: Holds genai_config.json, the graph and its data. Their hashes must have been checked: flipped weights run silently.

    Raises:
        FormatError: The folder is damaged, or the runtime refuses it.
    """

    def __init__(self, folder: Path) -> None:
        import onnxruntime_genai as genai

        self.files = read_folder(folder)
        self._genai = genai
        self._is_checked = False
        genai.disable_telemetry_events()
        try:
            config = genai.Config(str(folder))
            config.overlay(json.dumps({"model": {"context_length": self.files.n_positions}}))
            self._model = genai.Model(config)
        except Exception as error:  # the library raises RuntimeError, and whatever onnxruntime raised
            raise refused(folder, error) from error

    def score(self, token_ids: Sequence[int]) -> Iterator[Logits]:
        """Logits after each token of one window, from an empty cache, in chunks of at most `CHUNK`.

        The first window's first two chunks also go through plain onnxruntime.

        Yields:
            (n_positions, vocab_size) float32; the chunks together have len(token_ids) rows.

        Raises:
            ValueError: The window does not fit the cache.
            FidelityError: Plain onnxruntime gives other logits.
        """
        if len(token_ids) > self.files.n_positions:
            raise ValueError(f"window of {len(token_ids)} tokens, cache of {self.files.n_positions}")
        plain = [] if self._is_checked else plain_logits(self.files, token_ids[: N_PLAIN_CHUNKS * CHUNK])
        self._is_checked = True
        generator = self._generator()
        for index, start in enumerate(range(0, len(token_ids), CHUNK)):
            generator.append_tokens(np.array(token_ids[start : start + CHUNK], np.int32))
            logits: Logits = generator.get_output("logits")[0].astype(np.float32, copy=False)
            if index < len(plain):
                _require_equal(plain[index], logits)
            yield logits

    def count_greedy_equal(self, prompt_ids: Sequence[int], expected_ids: Sequence[int]) -> int:
        """Tokens of greedy generation, one decode step each, that equal `expected_ids` before the first that does not."""
        generator = self._generator()
        generator.append_tokens(np.array(prompt_ids, np.int32))
        for n_equal, token_id in enumerate(expected_ids):
            if int(generator.get_logits()[0, -1].argmax()) != token_id:
                return n_equal
            if n_equal + 1 < len(expected_ids):
                generator.append_tokens(np.array([token_id], np.int32))
        return len(expected_ids)

    def _generator(self) -> Any:
        parameters = self._genai.GeneratorParams(self._model)
        parameters.set_search_options(max_length=self.files.n_positions, do_sample=False)
        return self._genai.Generator(self._model, parameters)


def plain_logits(files: ModelFolder, token_ids: Sequence[int]) -> list[Logits]:
    """Logits of each chunk of `CHUNK` tokens, (n_tokens, vocab_size), by a plain onnxruntime session that is gone afterwards."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(files.graph_path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise refused(files.path, error) from error
    outputs = [output.name for output in session.get_outputs()]
    empty = np.zeros((1, files.n_kv_heads, 0, files.head_dim), np.float32)
    cache = {given.name: empty for given in session.get_inputs() if given.name.startswith("past_key_values")}
    logits: list[Logits] = []
    for start in range(0, len(token_ids), CHUNK):
        chunk = token_ids[start : start + CHUNK]
        feeds = {"input_ids": np.array([chunk], np.int64), "attention_mask": np.ones((1, start + len(chunk)), np.int64)}
        answers = dict(zip(outputs, session.run(outputs, feeds | cache), strict=True))
        logits.append(answers["logits"][0])
        cache = {name: answers[name.replace("past_key_values", "present")] for name in cache}
    return logits


def _require_equal(plain: Logits, generated: Logits) -> None:
    error = float(np.abs(plain - generated).max())
    spread = float(plain.std())
    if error <= PLAIN_TOLERANCE * spread:
        return
    raise FidelityError(
        "the model answers differently in plain onnxruntime than in onnxruntime-genai",
        why=f"logits differ by {error:.3g}, their spread is {spread:.3g}, {PLAIN_TOLERANCE:.0%} of it is allowed",
        fix="report it, with the checkpoint's name; convert to another target meanwhile: --to litert, mlx or gguf",
    )


def refused(folder: Path, error: Exception) -> FormatError:
    """The error for a model that a runtime would not open."""
    why = " ".join(str(error).split())[:300]
    return FormatError(
        f"{folder} cannot be opened by onnxruntime",
        why=why,
        fix="check the bundle with: toolkit verify BUNDLE --full-check, or convert again",
    )
