"""`toolkit transcribe`: a recording in, its text with times out."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.bundle import Bundle
from toolkit.cli.output import print_json, printable
from toolkit.limits import check_threads

if TYPE_CHECKING:
    from toolkit.speech.transcription import Segment, Transcript

_EXAMPLES = """\
examples:
  toolkit transcribe bundles/whisper-tiny.en-litert-int8 note.wav
  toolkit transcribe BUNDLE note.wav --language ja --json
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `transcribe` to the command line."""
    parser = subparsers.add_parser(
        "transcribe",
        help="write down what is said in a recording",
        description="Write down what is said in a recording: one line a segment, with its times, on stdout as it is found.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bundle", metavar="BUNDLE", help="folder of a speech model that `convert` wrote")
    parser.add_argument("sound", metavar="FILE", type=Path, help="a WAV file; other formats where soundfile is installed")
    parser.add_argument("--language", metavar="CODE", help="what is spoken, like en or ja (default: detected where the model can)")
    parser.add_argument("--threads", metavar="N", type=int, help="CPU threads (default: 2)")
    parser.add_argument("--full-check", action="store_true", help="hash every file, even if it was checked before")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from toolkit.speech.quiet import quiet_native
    from toolkit.speech.transcription import transcribe
    from toolkit.speech.wav import read_sound
    from toolkit.speech.whisper_decoding import DecodeOptions
    from toolkit.speech.whisper_litert import WhisperLiteRt
    from toolkit.speech.whisper_text import WhisperVocabulary

    threads = min(2, os.cpu_count() or 1) if args.threads is None else args.threads
    check_threads(threads)
    samples = read_sound(args.sound)
    bundle = Bundle.open(args.bundle, full_check=args.full_check)
    with quiet_native():
        model = WhisperLiteRt.open(bundle, n_threads=threads)
    try:
        vocabulary = WhisperVocabulary(bundle.path / "tokenizer.json")
        started = time.perf_counter()
        on_segment = None if args.json else _print_segment
        transcript = transcribe(model, vocabulary, samples, DecodeOptions(language=args.language), on_segment=on_segment)
        elapsed_s = time.perf_counter() - started
    finally:
        with quiet_native():
            model.close()
    if args.json:
        print_json(_result(transcript, elapsed_s))
    else:
        factor = elapsed_s / transcript.duration_s if transcript.duration_s else 0.0
        said = f"{len(transcript.segments)} segments" if transcript.segments else "no speech found"
        print(f"{said} in {transcript.duration_s:.1f} s of sound, after {elapsed_s:.1f} s ({factor:.2f} x its length)", file=sys.stderr)
    return 0


def _print_segment(segment: Segment) -> None:
    print(f"{_clock(segment.start_s)} - {_clock(segment.end_s)}  {printable(segment.text.strip())}", flush=True)


def _clock(seconds: float) -> str:
    """Minutes and seconds with tenths, like 01:02.5."""
    tenths = round(seconds * 10)
    return f"{tenths // 600:02d}:{tenths // 10 % 60:02d}.{tenths % 10}"


def _result(transcript: Transcript, elapsed_s: float) -> dict[str, Any]:
    return {
        "text": transcript.text,
        "language": transcript.language,
        "duration_s": transcript.duration_s,
        "elapsed_s": elapsed_s,
        "segments": [
            {
                "start_s": segment.start_s,
                "end_s": segment.end_s,
                "text": segment.text.strip(),
                "no_speech_probability": segment.no_speech_probability,
                "mean_log_probability": segment.mean_log_probability,
            }
            for segment in transcript.segments
        ],
    }
