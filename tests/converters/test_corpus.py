from __future__ import annotations

import json
from pathlib import Path

import pytest

from converters.corpus import documents, windows
from tests.converters.small_tokenizer import small_tokenizer_json
from toolkit.errors import FormatError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_bytes(small_tokenizer_json())
    return tmp_path


def ids_of(folder: Path, text: str) -> list[int]:
    from tokenizers import Tokenizer

    ids: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    return ids


def test_every_text_names_an_author_long_dead_and_a_printing_before_1930() -> None:
    for purpose in ("verification", "calibration"):
        found = documents(purpose)
        assert {document.language for document in found} == {"en", "ja"}
        for document in found:
            assert document.died < 1950 and document.published < 1930 and document.title and document.author
            assert len(document.text) > 2000


def test_calibration_and_verification_share_no_sentence() -> None:
    def sentences(purpose: str) -> set[str]:
        texts = [document.text for document in documents(purpose)]  # type: ignore[arg-type]
        return {part.strip() for text in texts for part in text.replace("。", ".").split(".") if len(part.strip()) > 12}

    assert len(sentences("verification")) > 50
    assert not sentences("verification") & sentences("calibration")


def test_windows_are_whole_take_turns_and_follow_the_text(folder: Path) -> None:
    got = windows(folder, n_tokens=1000, window=256)
    assert [len(window) for window in got] == [256] * 4
    english, japanese = (ids_of(folder, document.text) for document in documents("verification"))
    assert [list(window) for window in got] == [english[:256], japanese[:256], english[256:512], japanese[256:512]]


def test_every_window_starts_as_the_tokenizer_starts_a_text(folder: Path) -> None:
    plain = windows(folder, n_tokens=600, window=300)
    data = json.loads(small_tokenizer_json())
    bos = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    token = {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}}
    data["post_processor"] = {"type": "TemplateProcessing", "single": [bos, sequence], "pair": [bos, sequence], "special_tokens": token}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    started = windows(folder, n_tokens=600, window=300)
    assert [window[0] for window in started] == [2, 2]
    assert [window[1:] for window in started] == [window[:-1] for window in plain]


def test_two_thousand_tokens_fit_in_windows_of_512(folder: Path) -> None:
    assert len(windows(folder)) == 4
    assert len(windows(folder, purpose="calibration")) == 4


def test_more_tokens_than_the_texts_hold_is_an_error_with_both_numbers(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"196 windows of 512 tokens asked for; the verification texts hold \d+"):
        windows(folder, n_tokens=100_000)


@pytest.mark.parametrize(("n_tokens", "window"), [(0, 512), (-1, 512), (100, 1)])
def test_sizes_that_mean_nothing_are_refused(folder: Path, n_tokens: int, window: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        windows(folder, n_tokens=n_tokens, window=window)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="tokenizer.json cannot be read"):
        windows(tmp_path)
