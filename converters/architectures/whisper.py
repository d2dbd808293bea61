"""Whisper: tensor names and shapes as Hugging Face spells them, and the configs transformers reads.

Not a `Family` of the text decoders: its spec is a `WhisperSpec`, and it has two stacks of layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from converters.architectures.fields import Fields
from converters.whisper_spec import FRAME_LENGTH, HOP_LENGTH, SAMPLE_RATE, WhisperSpec
from toolkit.speech.whisper_tokens import WhisperTokens

MULTILINGUAL_VOCAB = 51865  # the smallest vocabulary OpenAI published with languages
Shape = tuple[int, ...]


def tensor_shapes(spec: WhisperSpec) -> dict[str, Shape]:
    """Hugging Face name to shape of every stored tensor, in writing order. The output layer is the token table."""
    width = spec.hidden_size
    shapes: dict[str, Shape] = {
        "model.encoder.conv1.weight": (width, spec.n_mels, 3),
        "model.encoder.conv1.bias": (width,),
        "model.encoder.conv2.weight": (width, width, 3),
        "model.encoder.conv2.bias": (width,),
        "model.encoder.embed_positions.weight": (spec.n_audio_positions, width),
    }
    for layer_index in range(spec.encoder.n_layers):
        shapes |= _layer(f"model.encoder.layers.{layer_index}.", width, spec.encoder.intermediate_size, ("self_attn",))
    shapes |= dict(_norm("model.encoder.layer_norm", width))
    shapes["model.decoder.embed_tokens.weight"] = (spec.vocab_size, width)
    shapes["model.decoder.embed_positions.weight"] = (spec.max_context_length, width)
    for layer_index in range(spec.decoder.n_layers):
        shapes |= _layer(f"model.decoder.layers.{layer_index}.", width, spec.decoder.intermediate_size, ("self_attn", "encoder_attn"))
    return shapes | dict(_norm("model.decoder.layer_norm", width))


def _norm(name: str, width: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _layer(prefix: str, width: int, inner: int, attentions: tuple[str, ...]) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for attention in attentions:
        shapes |= dict(_norm(f"{prefix}{attention}_layer_norm", width))
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes[f"{prefix}{attention}.{projection}.weight"] = (width, width)
            if projection != "k_proj":
                shapes[f"{prefix}{attention}.{projection}.bias"] = (width,)
    shapes |= {f"{prefix}fc1.weight": (inner, width), f"{prefix}fc1.bias": (inner,)}
    shapes |= {f"{prefix}fc2.weight": (width, inner), f"{prefix}fc2.bias": (width,)}
    return shapes | dict(_norm(f"{prefix}final_layer_norm", width))


def tokens_from(
    special: Mapping[str, int],
    *,
    vocab_size: int,
    is_multilingual: bool,
    suppressed: tuple[int, ...],
    suppressed_at_start: tuple[int, ...],
    origin: str = "tokenizer.json",
) -> WhisperTokens:
    """Whisper's tokens by the texts every published tokenizer gives them.

    Languages are the tokens between the start of a transcript and `<|translate|>`. The timestamps may be missing from the
    tokenizer; they always follow `<|notimestamps|>`.

    Raises:
        FormatError: A token is missing, or ids make no sense.
    """
    fields = Fields(special, origin)
    ids = {text: fields.integer(f"<|{text}|>", minimum=0, maximum=vocab_size - 1) for text in _TEXTS}
    silent = next((name for name in ("<|nospeech|>", "<|nocaptions|>") if name in special), "<|nospeech|>")
    first, last = ids["startoftranscript"], ids["translate"]
    between = sorted((token_id, text) for text, token_id in special.items() if first < token_id < last)
    return WhisperTokens.from_dict(
        {
            **{name: ids[text] for text, name in _TEXTS.items()},
            "no_speech": fields.integer(silent, minimum=0, maximum=vocab_size - 1),
            "timestamp_begin": ids["notimestamps"] + 1,
            "is_multilingual": is_multilingual,
            "languages": {text.strip("<|>"): token_id for token_id, text in between} if is_multilingual else {},
            "suppressed": suppressed,
            "suppressed_at_start": suppressed_at_start,
        },
        vocab_size=vocab_size,
        origin=origin,
    )


_TEXTS = {
    "endoftext": "end_of_text",
    "startoftranscript": "start_of_transcript",
    "transcribe": "transcribe",
    "translate": "translate",
    "startofprev": "start_of_previous",
    "notimestamps": "no_timestamps",
}


def config_from_spec(spec: WhisperSpec) -> dict[str, Any]:
    """config.json for transformers 4 and 5."""
    tokens = spec.tokens
    data: dict[str, Any] = {
        "architectures": [spec.architecture],
        "model_type": spec.model_type,
        "activation_function": "gelu",
        "d_model": spec.hidden_size,
        "num_mel_bins": spec.n_mels,
        "max_source_positions": spec.n_audio_positions,
        "max_target_positions": spec.max_context_length,
        "vocab_size": spec.vocab_size,
        "num_hidden_layers": spec.encoder.n_layers,
        "scale_embedding": False,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "bos_token_id": tokens.end_of_text,
        "eos_token_id": tokens.end_of_text,
        "pad_token_id": tokens.end_of_text,
        "decoder_start_token_id": tokens.start_of_transcript,
    }
    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        data |= {f"{name}_layers": stack.n_layers, f"{name}_attention_heads": stack.n_heads, f"{name}_ffn_dim": stack.intermediate_size}
    return data


def generation_config_from_spec(spec: WhisperSpec) -> dict[str, Any]:
    """generation_config.json: what transformers' `generate` needs to transcribe."""
    tokens = spec.tokens
    data: dict[str, Any] = {
        "bos_token_id": tokens.end_of_text,
        "eos_token_id": tokens.end_of_text,
        "pad_token_id": tokens.end_of_text,
        "decoder_start_token_id": tokens.start_of_transcript,
        "prev_sot_token_id": tokens.start_of_previous,
        "no_timestamps_token_id": tokens.no_timestamps,
        "max_length": spec.max_context_length,
        "max_initial_timestamp_index": 50,
        "is_multilingual": tokens.is_multilingual,
        "return_timestamps": False,
    }
    if tokens.suppressed:
        data["suppress_tokens"] = list(tokens.suppressed)
    if tokens.suppressed_at_start:
        data["begin_suppress_tokens"] = list(tokens.suppressed_at_start)
    if tokens.is_multilingual:
        data["lang_to_id"] = {f"<|{code}|>": token_id for code, token_id in tokens.languages.items()}
        data["task_to_id"] = {"transcribe": tokens.transcribe, "translate": tokens.translate}
    if spec.alignment_heads:
        data["alignment_heads"] = [list(pair) for pair in spec.alignment_heads]
    return data


def preprocessor_config(spec: WhisperSpec) -> dict[str, Any]:
    """preprocessor_config.json of the log-mel front end."""
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": spec.n_mels,
        "sampling_rate": SAMPLE_RATE,
        "hop_length": HOP_LENGTH,
        "chunk_length": spec.n_samples // SAMPLE_RATE,
        "n_fft": FRAME_LENGTH,
        "padding_value": 0.0,
        "return_attention_mask": False,
    }
