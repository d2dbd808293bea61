"""What sherpa-onnx reads beside the graphs: the metadata in the encoder, and the bytes of each text token."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from toolkit.errors import FormatError
from toolkit.json_depth import check_json_depth
from toolkit.speech.whisper_text import byte_of_character

if TYPE_CHECKING:
    from converters.whisper_spec import WhisperSpec

ENCODER_NAME, DECODER_NAME, TOKENS_NAME, TOKENIZER_NAME = "encoder.onnx", "decoder.onnx", "tokens.txt", "tokenizer.json"


def text_tokens(tokenizer_json: bytes, spec: WhisperSpec) -> dict[int, bytes]:
    """The bytes of every token that is text, by id, in order.

    Raises:
        FormatError: The tokenizer holds no byte-level vocabulary.
    """
    table = byte_of_character()
    try:
        text = tokenizer_json.decode("utf-8")
        check_json_depth(text)
        vocab = json.loads(text)["model"]["vocab"]
        ids = {int(token_id): piece for piece, token_id in vocab.items() if token_id < spec.tokens.end_of_text}
        return {token_id: bytes(table[char] for char in ids[token_id]) for token_id in sorted(ids)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"[:200]
        raise FormatError("tokenizer.json is no vocabulary of Whisper", why=why, fix="download the checkpoint again") from error


def tokens_txt(tokens: dict[int, bytes]) -> str:
    """One line a token: its bytes in base64, a space, its id.

    An empty token says nothing and is left out: its line would begin with the space, and sherpa-onnx would read no further.
    """
    return "".join(f"{base64.b64encode(piece).decode()} {token_id}\n" for token_id, piece in tokens.items() if piece)


def encoder_facts(spec: WhisperSpec, tokens: dict[int, bytes]) -> dict[str, str]:
    """The encoder's metadata, by sherpa-onnx's names; it ends the process where one that it reads is missing."""
    special = spec.tokens
    prompt = [special.start_of_transcript]
    if special.is_multilingual:
        prompt += [next(iter(special.languages.values())), special.transcribe]
    facts: dict[str, Any] = {
        "model_type": "whisper",
        "version": 1,
        "n_mels": spec.n_mels,
        "n_audio_ctx": spec.n_audio_positions,
        "n_audio_state": spec.hidden_size,
        "n_audio_head": spec.encoder.n_heads,
        "n_audio_layer": spec.encoder.n_layers,
        "n_vocab": spec.vocab_size,
        "n_text_ctx": spec.max_context_length,
        "n_text_state": spec.hidden_size,
        "n_text_head": spec.decoder.n_heads,
        "n_text_layer": spec.decoder.n_layers,
        "sot_sequence": prompt,
        "sot": special.start_of_transcript,
        "sot_index": 0,
        "sot_prev": special.start_of_previous,
        "eot": special.end_of_text,
        # only written down: sherpa-onnx reads it and has no use for it
        "blank_id": next((token_id for token_id, piece in tokens.items() if piece == b" "), special.end_of_text),
        "translate": special.translate,
        "transcribe": special.transcribe,
        "is_multilingual": int(special.is_multilingual),
        "no_speech": special.no_speech,
        "no_timestamps": special.no_timestamps,
        "non_speech_tokens": special.suppressed,
    }
    if special.is_multilingual:
        facts |= {"all_language_tokens": special.languages.values(), "all_language_codes": special.languages}
    return {key: str(value) if isinstance(value, int | str) else ",".join(map(str, value)) for key, value in facts.items()}
