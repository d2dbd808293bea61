"""A speech checkpoint's own answers on the verification recordings, by transformers in float32."""

from __future__ import annotations

import array
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converters.divergence import Logits
from toolkit.cache import sha256_file

META_NAME, LOGITS_NAME = "speech.json", "speech-logits.f32"


@dataclass(frozen=True)
class SpeechWindow:
    """One window and what the checkpoint made of it.

    Args:
        name: For people.
        said: What is said in it.
        sound: File of its samples, 4-byte floats at 16 kHz, in the reference's folder.
        language: None for an English-only model.
        prompt_ids: Start of transcript, language and task, no timestamps.
        text_ids: What is said, as tokens, with the end of text behind: what the logits are compared on.
        greedy_ids: The tokens transformers' `generate` takes, without prompt and end.
    """

    name: str
    said: str
    sound: str
    language: str | None
    prompt_ids: tuple[int, ...]
    text_ids: tuple[int, ...]
    greedy_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class SpeechReference:
    """Where the answers lie. `speech-logits.f32` has a row for each token of `text_ids`: what was predicted before it."""

    folder: Path
    spec: dict[str, Any]
    windows: tuple[SpeechWindow, ...]

    def rows(self, window_index: int, start: int, count: int) -> Logits:
        """(count, vocab_size) float32 of one window, from its row `start` on."""
        vocab_size = self.spec["vocab_size"]
        before = sum(len(window.text_ids) for window in self.windows[:window_index]) + start
        with (self.folder / LOGITS_NAME).open("rb") as stream:
            stream.seek(4 * before * vocab_size)
            return np.fromfile(stream, np.float32, count * vocab_size).reshape(count, vocab_size)

    def samples(self, window_index: int) -> array.array[float]:
        """The sound of one window."""
        return array.array("f", (self.folder / self.windows[window_index].sound).read_bytes())


def open_speech_reference(folder: Path, *, full_check: bool = False) -> SpeechReference | None:
    """A reference written by `compute_speech_reference`; None if there is none, or not a whole one."""
    try:
        data = json.loads((folder / META_NAME).read_text(encoding="utf-8"))
        windows = tuple(_window(item) for item in data["windows"])
        reference = SpeechReference(folder, data["spec"], windows)
        expected = 4 * reference.spec["vocab_size"] * sum(len(window.text_ids) for window in windows)
        is_whole = (folder / LOGITS_NAME).stat().st_size == expected and all((folder / window.sound).is_file() for window in windows)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not is_whole or (full_check and sha256_file(folder / LOGITS_NAME) != data.get("sha256")):
        return None
    return reference


def _window(data: dict[str, Any]) -> SpeechWindow:
    ids = {key: tuple(data[key]) for key in ("prompt_ids", "text_ids", "greedy_ids")}
    return SpeechWindow(**(data | ids))


def compute_speech_reference(hf_dir: str, folder: str, spec: dict[str, Any], windows: list[dict[str, Any]]) -> dict[str, Any]:
    """Run the checkpoint over the windows. Meant for a child process; the sound files lie in `folder` already.

    Writes the logits first and `speech.json` last, each renamed into place, so a reference is there whole or not.

    Returns:
        {"n_windows": how many}.
    """
    import torch
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    model = WhisperForConditionalGeneration.from_pretrained(hf_dir, dtype=torch.float32, attn_implementation="eager").eval()
    extractor = WhisperFeatureExtractor.from_pretrained(hf_dir)
    place, rows, done = Path(folder), [], []
    with torch.inference_mode():
        for item in windows:
            window = _window(item)
            sound = np.fromfile(place / window.sound, np.float32)
            features = extractor(sound, sampling_rate=extractor.sampling_rate, return_tensors="pt").input_features
            ids = torch.tensor([[*window.prompt_ids, *window.text_ids[:-1]]])
            logits = model(input_features=features, decoder_input_ids=ids).logits[0, len(window.prompt_ids) - 1 :]
            rows.append(logits.numpy())
            done.append({**asdict(window), "greedy_ids": _greedy(model, features, window)})
    building = place / f".{LOGITS_NAME}.{os.getpid()}"
    np.concatenate(rows).astype(np.float32).tofile(building)
    building.replace(place / LOGITS_NAME)
    data = {"spec": spec, "windows": done, "sha256": sha256_file(place / LOGITS_NAME)}
    draft = place / f".{META_NAME}.{os.getpid()}"
    draft.write_text(json.dumps(data), encoding="utf-8")
    draft.replace(place / META_NAME)
    return {"n_windows": len(done)}


def _greedy(model: Any, features: Any, window: SpeechWindow) -> Sequence[int]:
    """transformers' own `generate`, without timestamps; at most half the context, as our decoder takes."""
    most = model.config.max_target_positions // 2
    room = min(most, model.config.max_target_positions - len(window.prompt_ids))
    chosen = {} if window.language is None else {"language": window.language, "task": "transcribe"}
    ids = model.generate(features, return_timestamps=False, do_sample=False, num_beams=1, max_new_tokens=room, **chosen)[0].tolist()
    start = list(window.prompt_ids)
    ids = ids[len(start) :] if ids[: len(start)] == start else ids
    end = model.generation_config.eos_token_id
    taken: list[int] = ids[: ids.index(end)] if end in ids else ids
    return taken
