from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.converters.tiny_whisper import token_ids, tokenizer_json
from toolkit.errors import FormatError
from toolkit.speech.whisper_text import WhisperVocabulary, byte_of_character


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer_json()), "utf-8")
    return path


def test_the_table_of_characters_is_gpt2s() -> None:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    assert byte_of_character() == {character: byte for byte, character in bytes_to_unicode().items()}


@pytest.mark.parametrize("text", ["the cat", " Ein Käse. ", "現場の点検", "a\n\tb", "🦜"])
def test_text_comes_back_as_the_tokenizers_library_says(text: str, tokenizer: Path) -> None:
    from tokenizers import Tokenizer

    theirs = Tokenizer.from_file(str(tokenizer))
    ids = theirs.encode(text, add_special_tokens=False).ids
    assert WhisperVocabulary(tokenizer).text(ids) == theirs.decode(ids) == text


def test_special_tokens_say_nothing_and_half_a_character_is_marked(tokenizer: Path) -> None:
    vocabulary = WhisperVocabulary(tokenizer)
    assert vocabulary.text([token_ids()["<|en|>"], 99_999]) == ""
    first_byte = [index for index, piece in enumerate(tokenizer_json()["model"]["vocab"]) if piece == "å"]
    assert vocabulary.text(first_byte) == "\ufffd"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model": {"vocab": []}}', '{"model": {"vocab": {"\u4e00": 1}}}', "[" * 5000])
def test_what_is_no_vocabulary_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content, "utf-8")
    with pytest.raises(FormatError, match="no vocabulary"):
        WhisperVocabulary(path)
