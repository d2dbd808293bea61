"""The checkpoint's own answers on the verification texts, by transformers in float32: what every bundle is held against."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from converters.divergence import Logits
from toolkit.cache import sha256_file

N_GREEDY_TOKENS = 64
META_NAME = "reference.json"
LOGITS_NAME = "logits.f32"
BLOCK = 128


@dataclass(frozen=True)
class Reference:
    """Where a checkpoint's answers lie and what was asked.

    Args:
        folder: Holds `logits.f32`: (sum of window lengths, vocab_size) float32, little-endian, row-major.
        windows: Token ids of each verification window.
        vocab_size: Columns of the logits.
        prompt_ids: Where greedy generation starts.
        greedy_ids: The 64 tokens that follow, each the one with the largest logit; stop tokens do not stop it.
    """

    folder: Path
    windows: tuple[tuple[int, ...], ...]
    vocab_size: int
    prompt_ids: tuple[int, ...]
    greedy_ids: tuple[int, ...]

    def rows(self, window_index: int, start: int, n_rows: int) -> Logits:
        """Logits of `n_rows` positions of one window from `start`; read, not mapped, so they leave memory again."""
        before = sum(len(window) for window in self.windows[:window_index]) + start
        with (self.folder / LOGITS_NAME).open("rb") as stream:
            stream.seek(before * self.vocab_size * 4)
            return np.fromfile(stream, np.float32, n_rows * self.vocab_size).reshape(n_rows, self.vocab_size)


def open_reference(folder: Path, *, full_check: bool = False) -> Reference | None:
    """A reference written by `compute_reference`; None if there is none, or not a whole one.

    Args:
        folder: Where it was written.
        full_check: Compare the hash of the logits too, not just their size.
    """
    try:
        data = json.loads((folder / META_NAME).read_text(encoding="utf-8"))
        reference = Reference(
            folder,
            tuple(tuple(window) for window in data["windows"]),
            data["vocab_size"],
            tuple(data["prompt_ids"]),
            tuple(data["greedy_ids"]),
        )
        size = (folder / LOGITS_NAME).stat().st_size
    except (OSError, ValueError, KeyError, TypeError):
        return None
    expected = 4 * reference.vocab_size * sum(len(window) for window in reference.windows)
    if size != expected or (full_check and sha256_file(folder / LOGITS_NAME) != data.get("sha256")):
        return None
    return reference


def compute_reference(hf_dir: str, folder: str, windows: list[list[int]], prompt_ids: list[int]) -> dict[str, Any]:
    """Run the checkpoint over the windows and let it go on greedily from the prompt. Meant for a child process.

    Writes `logits.f32` first and `reference.json` last, each renamed into place, so a reference is there whole or not.

    Returns:
        {"vocab_size": columns}.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(hf_dir, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        blocks = (block for window in windows for block in _window_logits(model, window))
        greedy_ids = partial(_greedy, model, prompt_ids)
        return {"vocab_size": write_reference(Path(folder), blocks, windows, prompt_ids=prompt_ids, greedy_ids=greedy_ids)}


def write_reference(
    place: Path, blocks: Iterable[Logits], windows: list[list[int]], *, prompt_ids: list[int], greedy_ids: Callable[[], list[int]]
) -> int:
    """Write `logits.f32` first and `reference.json` last, each renamed into place, so a reference is there whole or not.

    Args:
        place: Existing folder.
        blocks: Logits of all windows in order, (n_positions, vocab_size) each.
        windows: The token ids that were asked.
        prompt_ids: Where greedy generation starts.
        greedy_ids: Gives what follows; called when the logits are written.

    Returns:
        Columns of the logits.
    """
    building = place / f".{LOGITS_NAME}.{os.getpid()}"
    vocab_size = 0
    digest = hashlib.sha256()
    with building.open("wb") as stream:
        for logits in blocks:
            vocab_size = logits.shape[-1]
            data = np.ascontiguousarray(logits).data
            stream.write(data)
            digest.update(data)
    greedy = greedy_ids()
    building.replace(place / LOGITS_NAME)
    meta = Reference(place, tuple(map(tuple, windows)), vocab_size, tuple(prompt_ids), tuple(greedy))
    facts = {name: value for name, value in asdict(meta).items() if name != "folder"} | {"sha256": digest.hexdigest()}
    draft = place / f".{META_NAME}.{os.getpid()}"
    draft.write_text(json.dumps(facts), encoding="utf-8")
    draft.replace(place / META_NAME)
    return vocab_size


def _window_logits(model: Any, window: list[int]) -> Iterator[Logits]:
    """Logits of a window: one pass through the layers, then the head on a block of rows at a time."""
    import torch

    hidden = model.model(input_ids=torch.tensor([window]), use_cache=False).last_hidden_state[0]
    softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    for start in range(0, len(window), BLOCK):
        logits = model.lm_head(hidden[start : start + BLOCK])
        if softcap is not None:
            logits = torch.tanh(logits / softcap) * softcap
        yield logits.numpy()


def _greedy(model: Any, prompt_ids: list[int]) -> list[int]:
    import torch

    tokens, cache, chosen = torch.tensor([prompt_ids]), None, []
    for _ in range(N_GREEDY_TOKENS):
        output = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        chosen.append(int(output.logits[0, -1].argmax()))
        tokens = torch.tensor([[chosen[-1]]])
    return chosen
