"""Sound files to one channel of floats at 16 kHz: WAV by the standard library, anything else by soundfile where it is installed."""

from __future__ import annotations

import array
import sys
import wave
from enum import StrEnum
from pathlib import Path

from toolkit.errors import BackendUnavailableError, FormatError, UsageError
from toolkit.speech.resample import MAX_RATE, MIN_RATE, Samples, resample

SAMPLE_RATE = 16_000
MAX_SECONDS = 4 * 3600
MAX_CHANNELS = 32
MAX_WIDTH = 4  # bytes a sample; the standard library's reader takes headers that say more
_BLOCK_FRAMES = 2**18
# How the files begin that soundfile reads: WAV's relatives, FLAC, Ogg, MP3 with tags, AIFF, CAF, AU.
_SOUND_STARTS = (b"RIFF", b"RIFX", b"RF64", b"riff", b"fLaC", b"OggS", b"ID3", b"FORM", b"caff", b".snd")
_START_BYTES = 4096


class NoSound(StrEnum):
    """Why a file is no sound in any format that is read here."""

    EMPTY = "it is empty, 0 bytes"
    TEXT = "it is a text file"
    UNKNOWN = "it begins like no sound file known here"


def read_sound(path: Path) -> Samples:
    """The sound of a file, its channels averaged, at 16 kHz, as 4-byte floats in -1..1.

    Raises:
        UsageError: There is no such file, or it is longer than four hours.
        FormatError: It is no sound file, or a damaged one.
        BackendUnavailableError: It begins like a sound file, is no plain WAV, and soundfile is not installed.
    """
    if not path.is_file():
        raise UsageError(f"there is no sound file {path}", why="no such file", fix="give the path of a recording, like note.wav")
    try:
        with path.open("rb") as stream:
            start = stream.read(12)
        if start[:4] == b"RIFF" and start[8:] == b"WAVE":
            samples, rate = _read_wav(path)
        else:
            samples, rate = _read_other(path)
    except OSError as error:
        raise FormatError(f"{path.name} cannot be read", why=error.strerror or str(error), fix="check the file") from error
    return resample(samples, from_rate=rate, to_rate=SAMPLE_RATE)


def _read_wav(path: Path) -> tuple[Samples, int]:
    try:
        with wave.open(str(path), "rb") as stream:
            channels, width, rate = stream.getnchannels(), stream.getsampwidth(), stream.getframerate()
            _check(path, channels, rate, stream.getnframes())
            if width > MAX_WIDTH:
                raise FormatError(
                    f"{path.name} is no WAV file that can be read",
                    why=f"its header says {8 * width} bits a sample; 8, 16, 24 and 32 are read",
                    fix="convert it: ffmpeg -i IN -ar 16000 -ac 1 -c:a pcm_s16le out.wav",
                )
            samples = array.array("f")
            while block := stream.readframes(_BLOCK_FRAMES):
                samples.extend(_mono(_scaled(block, width), channels))
    except (wave.Error, EOFError, RuntimeError) as error:  # RuntimeError: a chunk that claims more than its parent holds
        if "unknown format" in str(error):  # floats and compressed sound in a WAV: beyond the standard library
            return _read_other(path)
        raise FormatError(
            f"{path.name} is no sound WAV file", why=str(error) or "it ends too early", fix="record or copy it again"
        ) from error
    return samples, rate


def _check(path: Path, channels: int, rate: int, n_frames: int) -> None:
    if not 1 <= channels <= MAX_CHANNELS or not MIN_RATE <= rate <= MAX_RATE:
        why = f"its header says {channels} channels at {rate} Hz"
        raise FormatError(f"{path.name} is no sound WAV file", why=why, fix="record or copy it again")
    if n_frames > MAX_SECONDS * rate:
        why = f"it lasts {n_frames / rate:.0f} s, at most {MAX_SECONDS} s are taken"
        raise UsageError(f"{path.name} is too long", why=why, fix="cut it into parts")


def _scaled(raw: bytes, width: int) -> Samples:
    """PCM samples of 1 to 4 bytes as floats; a last part of a sample is dropped."""
    raw = raw[: len(raw) - len(raw) % width]
    if width == 1:
        return array.array("f", [(value - 128) / 128 for value in raw])
    if width == 3:  # to the upper three bytes of four
        wide = bytearray(len(raw) // 3 * 4)
        for byte in range(3):
            wide[byte + 1 :: 4] = raw[byte::3]
        raw, width = bytes(wide), 4
    values = array.array("h" if width == 2 else "i")
    values.frombytes(raw)
    if sys.byteorder == "big":
        values.byteswap()
    scale = 1 / (32768 if width == 2 else 2147483648)
    return array.array("f", [value * scale for value in values])


def _mono(samples: Samples, channels: int) -> Samples:
    if channels == 1:
        return samples
    n_frames = len(samples) // channels
    parts = [samples[index : n_frames * channels : channels] for index in range(channels)]
    return array.array("f", [sum(values) / channels for values in zip(*parts, strict=True)])


def _read_other(path: Path) -> tuple[Samples, int]:
    try:
        import soundfile  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ModuleNotFoundError as error:
        if (why := why_no_sound(path)) is not None:
            fix = "give a recording, or convert it: ffmpeg -i IN -ar 16000 -ac 1 out.wav"
            raise FormatError(f"{path.name} is no sound file", why=why, fix=fix) from error
        raise BackendUnavailableError(
            f"{path.name} is no plain WAV file",
            why="other sound files need soundfile, which is not installed",
            fix="pip install soundfile, or convert it: ffmpeg -i IN -ar 16000 -ac 1 out.wav",
        ) from error
    try:
        information = soundfile.info(str(path))
        _check(path, information.channels, information.samplerate, information.frames)
        data, rate = soundfile.read(str(path), dtype="float32", always_2d=True)
    except RuntimeError as error:
        raise FormatError(f"{path.name} is no sound file", why=str(error)[:200], fix="give a WAV, FLAC or OGG file") from error
    return array.array("f", data.mean(axis=1).astype("float32").tobytes()), int(rate)


def why_no_sound(path: Path) -> NoSound | None:
    """Why a file is no sound, by its first bytes; None if it begins like one, or cannot be read."""
    try:
        with path.open("rb") as stream:
            start = stream.read(_START_BYTES)
    except OSError:
        return None
    if not start:
        return NoSound.EMPTY
    if all(byte >= 32 or byte in b"\t\n\f\r" for byte in start):
        return NoSound.TEXT
    # An MP3 without tags begins with a frame: eleven set bits, and a layer that is not 0.
    is_frame = len(start) > 1 and start[0] == 0xFF and start[1] & 0xE0 == 0xE0 and start[1] & 0x06 != 0
    return None if is_frame or start.startswith(_SOUND_STARTS) else NoSound.UNKNOWN
