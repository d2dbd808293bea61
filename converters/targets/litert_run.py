"""Running a written .tflite token by token or chunk by chunk, to compare its logits with the checkpoint's."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.errors import FormatError

BLOCKED = -1.0e9  # added to an attention score that must not count; small enough for float16 graphs' exp to be zero
_SCORE = re.compile(r"score_(\d+)")


class LiteRtGraph:
    """A .tflite opened by ai-edge-litert's CompiledModel, with its KV cache kept in the runtime's own buffers.

    Each signature reads one set of KV buffers and writes the other; the two are swapped after a step, so nothing the
    size of the cache is ever copied.

    Args:
        path: The .tflite file. Its hash must have been checked: the native parser dies on a truncated file.
        n_threads: CPU threads.

    Raises:
        FormatError: The file has no `score_N` or `decode` signature, so it was not written by this converter.
    """

    def __init__(self, path: Path, *, n_threads: int = 2) -> None:
        from ai_edge_litert.compiled_model import CompiledModel
        from ai_edge_litert.hardware_accelerator import HardwareAccelerator
        from ai_edge_litert.options import CpuOptions, Options

        # Without a weights cache each signature packs all weights for itself: 3.9 GB for Gemma 3 270M in float, 1.1 GB with
        # one. The file lies beside the model, not in a temporary folder that may be memory, and is mapped until the end.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".packed-") as scratch:
            cpu = CpuOptions(num_threads=n_threads, xnnpack_weight_cache_path=str(Path(scratch) / "weights"))
            options = Options(hardware_accelerators=HardwareAccelerator.CPU, cpu_options=cpu)
            self._model = CompiledModel.from_file(str(path), options=options)
        self._signatures: dict[str, Any] = self._model.get_signature_list()
        scores = [name for name in self._signatures if _SCORE.fullmatch(name)]
        if not scores or "decode" not in self._signatures:
            raise FormatError(
                f"{path.name} cannot be verified",
                why=f"its signatures are {', '.join(sorted(self._signatures))}; score_N and decode are needed",
                fix="convert the checkpoint again with this version",
            )
        self._score_name = scores[0]
        self.score_length = int(scores[0].split("_")[1])
        self._kv_names = [name for name in self._signatures["decode"]["inputs"] if name.startswith("kv_cache")]
        details = self._model.get_input_tensor_details("decode")
        self.cache_length = int(details["mask"]["shape"][-1])
        self._reset()

    def _reset(self) -> None:
        make = self._model.create_input_buffer_by_name
        self._kv_in = {name: self._zeros(name) for name in self._kv_names}
        self._kv_out = {name: self._zeros(name) for name in self._kv_names}
        self._io: dict[str, tuple[dict[str, Any], Any]] = {}
        for name in (self._score_name, "decode"):
            inputs = {key: make(name, key) for key in ("tokens", "input_pos", "mask")}
            self._io[name] = (inputs, self._model.create_output_buffer_by_name(name, "logits"))

    def _zeros(self, name: str) -> Any:
        """A KV buffer of zeros. The runtime hands out memory as it comes, and a masked NaN is still a NaN."""
        buffer = self._model.create_input_buffer_by_name("decode", name)
        buffer.write(np.zeros(self._model.get_input_tensor_details("decode")[name]["shape"], np.float32))
        return buffer

    def score(self, token_ids: Sequence[int]) -> Iterator[np.ndarray]:
        """Logits after each token of one window, from an empty cache, in chunks of at most `score_length`.

        Yields:
            (n_positions, vocab_size) float32; the chunks together have len(token_ids) rows.

        Raises:
            ValueError: The window does not fit the cache.
        """
        if len(token_ids) > self.cache_length:
            raise ValueError(f"window of {len(token_ids)} tokens, cache of {self.cache_length}")
        for start in range(0, len(token_ids), self.score_length):
            chunk = list(token_ids[start : start + self.score_length])
            padded = chunk + [0] * (self.score_length - len(chunk))
            yield self._step(self._score_name, padded, start)[: len(chunk)]

    def count_greedy_equal(self, prompt_ids: Sequence[int], expected_ids: Sequence[int]) -> int:
        """Tokens of greedy generation, one `decode` step each, that equal `expected_ids` before the first that does not."""
        tokens = [*prompt_ids, *expected_ids[:-1]]
        for position, token_id in enumerate(tokens):
            logits = self._step("decode", [token_id], position)[0]
            n_equal = position + 1 - len(prompt_ids)
            if n_equal >= 0 and int(logits.argmax()) != expected_ids[n_equal]:
                return n_equal
        return len(expected_ids)

    def _step(self, signature: str, token_ids: list[int], start: int) -> np.ndarray:
        n = len(token_ids)
        positions = np.arange(start, start + n, dtype=np.int32)
        # A padded tail may run past the cache; those rows are thrown away, but their positions must stay inside it.
        positions = np.minimum(positions, self.cache_length - 1)
        mask = np.where(np.arange(self.cache_length)[None, :] <= positions[:, None], 0.0, BLOCKED).astype(np.float32)
        inputs, logits = self._io[signature]
        inputs["tokens"].write(np.array([token_ids], dtype=np.int32))
        inputs["input_pos"].write(positions)
        inputs["mask"].write(mask[None, None])
        self._model.run_by_name(signature, inputs | self._kv_in, self._kv_out | {"logits": logits})
        self._kv_in, self._kv_out = self._kv_out, self._kv_in
        shape = self._model.get_output_tensor_details(signature)["logits"]["shape"]
        return np.asarray(logits.read(int(np.prod(shape)), np.float32)).reshape(n, -1)
