"""Speak the English notes of benchmarks/voice_notes into WAV files, clean or with noise at a stated level.

    pip install hibari-tts==0.2.1
    python -m benchmarks.spoken_notes OUT [--snr-db 10]

Needs hibari-tts, which is no dependency of ours: it is a stand-in for people, for measuring only. One file a note, OUT/SET/NAME.wav,
bit for bit the same every time. The references are the notes themselves. Noise is white, so that anyone can make the same.
"""

from __future__ import annotations

import argparse
import random
import sys
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report_quality import SETS, KnownNote, load_notes
from toolkit.errors import BackendUnavailableError, ToolkitError, UsageError

RATE = 24_000
PAUSE_S = 0.35
SEED = 20261130


def spoken(note: KnownNote, voice: Any) -> list[float]:
    """The samples of a note, sentence after sentence with a pause between."""
    samples: list[float] = []
    for index, (_, said) in enumerate(note.facts["said"]):
        samples += [float(value) for value in voice(said, seed=SEED + index)]
        samples += [0.0] * round(PAUSE_S * RATE)
    return samples


def with_noise(samples: Sequence[float], snr_db: float) -> list[float]:
    """White noise added so that the mean power of the speech, pauses left out, stands `snr_db` above the noise's."""
    loud = [value for value in samples if value != 0.0]
    power = sum(value * value for value in loud) / len(loud)
    deviation = (power / 10 ** (snr_db / 10)) ** 0.5
    draw = random.Random(SEED)
    return [value + draw.gauss(0.0, deviation) for value in samples]


def write_wav(path: Path, samples: Sequence[float]) -> None:
    """One channel of 16 bits; louder than full scale is clipped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as stream:
        stream.setnchannels(1)
        stream.setsampwidth(2)
        stream.setframerate(RATE)
        values = (round(32767 * max(-1.0, min(1.0, value))) for value in samples)
        stream.writeframes(b"".join(value.to_bytes(2, "little", signed=True) for value in values))


def open_voice() -> Any:
    """The synthetic speaker.

    Raises:
        BackendUnavailableError: It is not installed.
    """
    try:
        from hibari import Hibari  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ModuleNotFoundError as error:
        why, fix = "hibari-tts is not installed", "pip install hibari-tts==0.2.1"
        raise BackendUnavailableError("no voice to speak the notes with", why=why, fix=fix) from error
    return Hibari()


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", metavar="OUT", type=Path, help="folder for SET/NAME.wav")
    parser.add_argument("--snr-db", metavar="DB", type=float, help="add noise: speech power over noise power, -10 to 60 (default: clean)")
    options = parser.parse_args(argv)
    try:
        if options.snr_db is not None and not -10 <= options.snr_db <= 60:
            raise UsageError(f"--snr-db {options.snr_db} is not possible", why="-10 to 60 are", fix="use --snr-db 10")
        voice = open_voice()
    except ToolkitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for name in SETS:
        for note in load_notes(name):
            if note.transcript.language == "en":
                samples = spoken(note, voice)
                samples = samples if options.snr_db is None else with_noise(samples, options.snr_db)
                write_wav(options.out / name / f"{note.name}.wav", samples)
                print(f"{name}/{note.name}.wav  {len(samples) / RATE:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
