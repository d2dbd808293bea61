"""One published bundle beside another, on the same tokens, each through its own target's runtime."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.child import run_in_child
from converters.corpus import windows
from converters.reference import open_reference, write_reference
from converters.verify import N_TOKENS, WINDOW, measure
from toolkit.bundle import Bundle
from toolkit.cache import cache_directory, check_free_disk
from toolkit.errors import UsageError
from toolkit.manifest import Fidelity

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint


def compare_bundles(path: Path, against: Path) -> Fidelity:
    """How far a bundle's answers are from another's on the verification texts.

    The other bundle takes the checkpoint's place: the KL is KL(other || bundle), and `reference_perplexity` is the
    other's. Greedy generation is not compared, and no gate is applied.

    Args:
        path: The bundle to judge.
        against: The bundle to judge it by; another target or recipe of the same checkpoint, or of one with the same tokenizer.

    Raises:
        FormatError: A bundle is damaged.
        BudgetError: The other's answers do not fit on the disk.
        UsageError: Their token ids do not mean the same, or one answers to sound.
        ToolkitError: A source cannot be had (its tokenizer cuts the texts), or a runtime fails.
    """
    from converters.targets import load_target

    bundle, other = Bundle.open(path, full_check=True), Bundle.open(against, full_check=True)
    for each in (bundle, other):
        _refuse_speech(each)
    checkpoint = _checkpoint_of(other)
    _require_same_tokens(bundle, other, checkpoint)
    length = min(WINDOW, *(each.manifest.context_length for each in (bundle, other)))
    work = cache_directory("convert", checkpoint.content_hash[:32])
    answers_bytes = 4 * N_TOKENS * checkpoint.spec.vocab_size
    check_free_disk(work, bundle.bytes + other.bytes + answers_bytes, "comparing two bundles")
    with tempfile.TemporaryDirectory(prefix="compare-", dir=work) as scratch:
        place = Path(scratch)
        for name in ("other", "answers", "bundle"):
            (place / name).mkdir()
        assert checkpoint.tokenizer.tokenizer_json is not None
        (place / "tokenizer.json").write_bytes(checkpoint.tokenizer.tokenizer_json)
        model = load_target(other.manifest.target).extract_model(other.entry_path, place / "other")
        arguments = {
            "target_name": other.manifest.target,
            "model": str(model),
            "folder": str(place / "answers"),
            "windows": [list(window) for window in windows(place, n_tokens=N_TOKENS, window=length)],
        }
        run_in_child("converters.compare:answer_here", arguments, what=f"run {other.name}")
        known = open_reference(place / "answers")
        assert known is not None, "answer_here left no whole reference"
        target = load_target(bundle.manifest.target)
        return measure(target, target.extract_model(bundle.entry_path, place / "bundle"), known, {})


def answer_here(target_name: str, model: str, folder: str, windows: list[list[int]]) -> dict[str, Any]:
    """Write a native model's logits on the windows as `compute_reference` writes the checkpoint's; in this process."""
    from converters.targets import load_target

    scorer = load_target(target_name).open_scorer(Path(model))
    blocks = (block for window in windows for block in scorer.score(window))
    return {"vocab_size": write_reference(Path(folder), blocks, windows, prompt_ids=windows[0][:1], greedy_ids=list)}


def _checkpoint_of(bundle: Bundle) -> Checkpoint:
    from converters.read import read_checkpoint

    return read_checkpoint(bundle.manifest.source.uri, name=bundle.manifest.name)


def _refuse_speech(bundle: Bundle) -> None:
    if bundle.is_speech:
        raise UsageError(
            f"{bundle.name} cannot be compared with another bundle",
            why="it answers to sound; bundles are compared on texts",
            fix=f"measure each beside its own checkpoint: toolkit verify {bundle.path} --fidelity",
        )


def _require_same_tokens(bundle: Bundle, other: Bundle, checkpoint: Checkpoint) -> None:
    if bundle.manifest.source.sha256 == other.manifest.source.sha256:
        return
    if _checkpoint_of(bundle).tokenizer.tokenizer_json != checkpoint.tokenizer.tokenizer_json:
        raise UsageError(
            f"{bundle.name} and {other.name} cannot be compared",
            why="their checkpoints have different tokenizers, so the same text is other tokens to each",
            fix="compare bundles of one checkpoint, or each with its own: toolkit verify BUNDLE --fidelity",
        )
