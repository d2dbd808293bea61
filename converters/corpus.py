"""The texts a conversion is verified on, cut into windows of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from converters.panics import panics_explained
from toolkit.errors import FormatError

Purpose = Literal["verification", "calibration"]
LANGUAGES = ("en", "ja")


@dataclass(frozen=True)
class Document:
    """One public-domain text with what its file says about it."""

    purpose: Purpose
    language: str
    title: str
    author: str
    died: int
    published: int
    text: str


def documents(purpose: Purpose) -> tuple[Document, ...]:
    """The texts kept for a purpose, one a language; those for calibration share nothing with those for verification."""
    return tuple(_read(purpose, language) for language in LANGUAGES)


@panics_explained()
def windows(
    tokenizer_dir: Path | str, *, n_tokens: int = 2048, window: int = 512, purpose: Purpose = "verification"
) -> tuple[tuple[int, ...], ...]:
    """Cut the texts into windows, the languages taking turns.

    Each window starts as the tokenizer starts a text (BOS, where it adds one) and goes on where the last window of the same
    language ended. A window never mixes languages.

    Args:
        tokenizer_dir: Folder with a tokenizer.json.
        n_tokens: Least number of tokens over all windows, starts included; rounded up to whole windows.
        window: Tokens of one window.
        purpose: Which texts.

    Returns:
        Windows of exactly `window` token ids each.

    Raises:
        FormatError: tokenizer.json is missing or damaged, or the tokenizers library gives up on it.
        ValueError: The texts do not hold that many windows, or a number is not positive.
    """
    if n_tokens <= 0 or window < 2:
        raise ValueError(f"n_tokens {n_tokens} must be positive and window {window} at least 2")
    tokenizer = _tokenizer(Path(tokenizer_dir))
    start = tuple(tokenizer.encode("").ids)
    step = window - len(start)
    by_language = [_pieces(tokenizer.encode(document.text, add_special_tokens=False).ids, step) for document in documents(purpose)]
    cut = [start + piece for piece in _in_turns(by_language)]
    n_windows = -(-n_tokens // window)
    if n_windows > len(cut):
        raise ValueError(f"{n_windows} windows of {window} tokens asked for; the {purpose} texts hold {len(cut)} with this tokenizer")
    return tuple(cut[:n_windows])


def _pieces(token_ids: Sequence[int], step: int) -> list[tuple[int, ...]]:
    return [tuple(token_ids[at : at + step]) for at in range(0, len(token_ids) - step + 1, step)]


def _in_turns(groups: Sequence[Sequence[tuple[int, ...]]]) -> list[tuple[int, ...]]:
    """One of each group in turn; a group that is used up is passed over."""
    longest = max(map(len, groups))
    return [group[index] for index in range(longest) for group in groups if index < len(group)]


def _read(purpose: Purpose, language: str) -> Document:
    content = resources.files("converters.texts").joinpath(f"{purpose}_{language}.txt").read_text(encoding="utf-8")
    header, _, text = content.partition("\n\n")
    fields = dict(line.split(": ", 1) for line in header.splitlines())
    return Document(purpose, language, fields["title"], fields["author"], int(fields["died"]), int(fields["published"]), text)


def _tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception, for a missing file too
        raise FormatError(
            f"{path} cannot be read", why=str(error)[:200], fix="put the checkpoint's tokenizer.json beside its config.json"
        ) from error
