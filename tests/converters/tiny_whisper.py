"""Tiny random Whisper models, written as CTranslate2 and Hugging Face folders by transformers and by the layout's own rules."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.converters.tiny_checkpoints import byte_vocabulary

LANGUAGES = ("en", "ja", "haw")
N_TIMESTAMPS = 1501
# Every size differs from every other, so that a mixed-up axis cannot pass.
SHAPE = {
    "d_model": 48,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "decoder_layers": 3,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 72,
    "num_mel_bins": 16,
    "max_source_positions": 50,
    "max_target_positions": 40,
}


def special_texts() -> list[str]:
    """The added tokens in the order every published tokenizer has them; they follow the text tokens."""
    names = [
        "endoftext",
        "startoftranscript",
        *LANGUAGES,
        "translate",
        "transcribe",
        "startoflm",
        "startofprev",
        "nospeech",
        "notimestamps",
    ]
    return [f"<|{name}|>" for name in names]


def token_ids() -> dict[str, int]:
    """Text of each special token -> id."""
    first = len(byte_vocabulary())
    return {text: first + index for index, text in enumerate(special_texts())}


def vocab_size() -> int:
    return len(byte_vocabulary()) + len(special_texts()) + N_TIMESTAMPS


def tiny_whisper(**changes: Any) -> Any:
    """A transformers WhisperForConditionalGeneration with random weights, norms and biases included."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    ids = token_ids()
    end = ids["<|endoftext|>"]
    special = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": ids["<|startoftranscript|>"]}
    config = WhisperConfig(
        **(SHAPE | special | {"vocab_size": vocab_size(), "suppress_tokens": [1, 2], "begin_suppress_tokens": [3, end]} | changes)
    )
    torch.manual_seed(20261130)
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                # Rounded, so that a float16 file holds exactly these values.
                parameter.copy_((torch.randn_like(parameter) * 0.15).half().float())
            else:
                parameter.copy_(parameter.half().float())
    return model


def tokenizer_json() -> dict[str, Any]:
    """A byte-level BPE tokenizer with Whisper's special tokens."""
    added = [
        {"id": token_id, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for text, token_id in token_ids().items()
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": byte_vocabulary(), "merges": [["t", "h"], ["th", "e"]]},
    }


def text(name: str) -> bytes:
    """A name as CTranslate2 stores it: its length with the zero byte, the bytes, the zero byte."""
    raw = name.encode() + b"\0"
    return struct.pack("<H", len(raw)) + raw


def variable(name: str, values: np.ndarray, *, kind: int | None = None, n_bytes: int | None = None) -> bytes:
    """One record of the table; `kind` and `n_bytes` may lie."""
    kinds = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}
    head = text(name) + struct.pack(f"<B{values.ndim}I", values.ndim, *values.shape)
    return (
        head
        + struct.pack("<BI", kinds[values.dtype.name] if kind is None else kind, values.nbytes if n_bytes is None else n_bytes)
        + values.tobytes()
    )


def alias(name: str, target: str) -> bytes:
    return text(name) + text(target)


@dataclass
class RawModel:
    """The parts of a model.bin, each of which may lie."""

    variables: list[bytes] = field(default_factory=lambda: [variable("a", np.zeros(8, np.float16)), variable("b", np.int8(3).reshape(()))])
    aliases: list[bytes] = field(default_factory=lambda: [alias("c", "a")])
    version: int = 6
    spec_name: str = "WhisperSpec"
    revision: int = 3
    n_variables: int | None = None
    n_aliases: int | None = None
    tail: bytes = b""

    def build(self) -> bytes:
        counts = [len(self.variables) if self.n_variables is None else self.n_variables]
        counts.append(len(self.aliases) if self.n_aliases is None else self.n_aliases)
        head = struct.pack("<I", self.version) + text(self.spec_name) + struct.pack("<II", self.revision, counts[0])
        return head + b"".join(self.variables) + struct.pack("<I", counts[1]) + b"".join(self.aliases) + self.tail


def ctranslate2_variables(model: Any, dtype: Any = np.float16) -> dict[str, np.ndarray]:
    """The variables of a model by CTranslate2's names: attention projections fused, key biases of zeros, switches as scalars."""
    state = {name.removeprefix("model."): value.numpy() for name, value in model.state_dict().items() if name != "proj_out.weight"}
    config = model.config
    out: dict[str, np.ndarray] = {
        "decoder/activation": np.int8(3),
        "decoder/alibi": np.int8(0),
        "decoder/alignment_heads": np.int16(1),
        "decoder/alignment_layer": np.int16(-1),
        "decoder/num_heads": np.int16(config.decoder_attention_heads),
        "decoder/pre_norm": np.int8(1),
        "decoder/scale_embeddings": np.int8(0),
        "decoder/start_from_zero_embedding": np.int8(0),
        "encoder/num_heads": np.int16(config.encoder_attention_heads),
        "decoder/embeddings/weight": state["decoder.embed_tokens.weight"],
    }
    for stack, n_layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        out[f"{stack}/position_encodings/encodings"] = state[f"{stack}.embed_positions.weight"]
        out |= norm(f"{stack}/layer_norm", state, f"{stack}.layer_norm")
        for layer in range(n_layers):
            out |= layer_variables(f"{stack}/layer_{layer}", state, f"{stack}.layers.{layer}", is_decoder=stack == "decoder")
    for conv in ("conv1", "conv2"):
        out |= {f"encoder/{conv}/{ending}": state[f"encoder.{conv}.{ending}"] for ending in ("weight", "bias")}
    return {name: value.astype(dtype) if value.ndim else value for name, value in out.items()}


def norm(name: str, state: dict[str, np.ndarray], source: str) -> dict[str, np.ndarray]:
    return {f"{name}/gamma": state[f"{source}.weight"], f"{name}/beta": state[f"{source}.bias"]}


def layer_variables(name: str, state: dict[str, np.ndarray], source: str, *, is_decoder: bool) -> dict[str, np.ndarray]:
    def fused(attention: str, projections: tuple[str, ...]) -> dict[str, np.ndarray]:
        weights = [state[f"{source}.{attention}.{p}.weight"] for p in projections]
        biases = [state.get(f"{source}.{attention}.{p}.bias", np.zeros(len(weights[0]), np.float32)) for p in projections]
        return {"weight": np.concatenate(weights), "bias": np.concatenate(biases)}

    groups = {"self_attention": ("self_attn", [("q_proj", "k_proj", "v_proj"), ("out_proj",)])}
    if is_decoder:
        groups["attention"] = ("encoder_attn", [("q_proj",), ("k_proj", "v_proj"), ("out_proj",)])
    out: dict[str, np.ndarray] = {}
    for block, (attention, linears) in groups.items():
        out |= norm(f"{name}/{block}/layer_norm", state, f"{source}.{attention}_layer_norm")
        for index, projections in enumerate(linears):
            out |= {f"{name}/{block}/linear_{index}/{ending}": value for ending, value in fused(attention, projections).items()}
    out |= norm(f"{name}/ffn/layer_norm", state, f"{source}.final_layer_norm")
    for index in (0, 1):
        out |= {f"{name}/ffn/linear_{index}/{ending}": state[f"{source}.fc{index + 1}.{ending}"] for ending in ("weight", "bias")}
    return out


def write_ctranslate2(model: Any, folder: Path, *, changes: dict[str, np.ndarray | None] | None = None, dtype: Any = np.float16) -> Path:
    """A folder as ct2-transformers-converter leaves it. `changes` replaces variables, or drops them (None)."""
    folder.mkdir(parents=True, exist_ok=True)
    variables = ctranslate2_variables(model, dtype) | (changes or {})
    records = [variable(name, np.asarray(value)) for name, value in variables.items() if value is not None]
    raw = RawModel(records, [alias("decoder/projection/weight", "decoder/embeddings/weight")])
    (folder / "model.bin").write_bytes(raw.build())
    ids = token_ids()
    config = {
        "is_multilingual": True,
        "suppress_ids": [1, 2],
        "suppress_ids_begin": [3, ids["<|endoftext|>"]],
        "lang_ids": [ids[f"<|{code}|>"] for code in LANGUAGES],
        "alignment_heads": [[1, 0], [2, 3]],
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    listed = [*byte_vocabulary(), *special_texts(), *(f"<|{index * 0.02:.2f}|>" for index in range(N_TIMESTAMPS))]
    (folder / "vocabulary.txt").write_text("\n".join(listed) + "\n", "utf-8")
    return folder
