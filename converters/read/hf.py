"""Reader for a Hugging Face directory: config.json, safetensors (single or sharded), tokenizer, template."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from converters.architectures import family_of
from converters.architectures.decoder import kv_shared_tensors
from converters.architectures.fields import Fields
from converters.architectures.gguf_dims import TURN_END_TOKENS
from converters.architectures.refusals import refuse_encoders, refuse_unsupported_config
from converters.checkpoint import Checkpoint, QuantizationInfo, TensorSource
from converters.read.hashes import check_stated_hashes, content_hash, hash_files
from converters.read.hf_tensors import HfTensorSource, check_tensor_set, encoder_part, stored_tensors, text_tensors, weight_files
from converters.read.hf_tokenizer import TOKENIZER_NAMES, chat_template_from_hf, tokenizer_from_hf
from converters.read.json_file import read_json_object
from converters.read.names import checkpoint_name
from converters.read.packed_int4 import PackedInt4Source, Packing, check_packed_set, packing_of, without_packing
from converters.read.safetensors_header import DTYPE_BYTES, StoredTensor
from converters.spec import ModelSpec
from toolkit.manifest import LicenseRecord, SourceRecord

_MAX_CONFIG_BYTES = 4 * 2**20
_GENERATION_NAME = "generation_config.json"
# What transformers assumes where the text_config of a multimodal Gemma 3 is silent (the published ones mostly are).
_GEMMA3_TEXT_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
}


# model_type of a multimodal checkpoint -> of the text model in it
_TEXT_TYPES = {"gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text"}


@dataclass(frozen=True)
class HfConfig:
    """What a directory's config.json and generation_config.json say.

    Args:
        spec: Of the text model.
        packing: How its linears are packed; None if they are plain.
        is_multimodal: Whether the checkpoint holds more than the text model.
    """

    spec: ModelSpec
    packing: Packing | None
    is_multimodal: bool


@dataclass(frozen=True)
class HfWeights:
    """What the headers of a directory's weights say.

    Args:
        files: Weight files and their index by name.
        tensors: What the text model reads, by its own names.
        left_out: Vision and audio tensors by the part they belong to.
    """

    files: Mapping[str, Path]
    tensors: Mapping[str, StoredTensor]
    left_out: Counter[str]


def read_hf(
    path: Path,
    *,
    name: str | None = None,
    source: SourceRecord | None = None,
    license: LicenseRecord | None = None,
    leaves_out_encoders: bool = False,
) -> Checkpoint:
    """Read a Hugging Face directory; weights stay on disk.

    Args:
        path: The directory.
        name: Name of the checkpoint; the directory's name by default.
        source: Where it came from, if it was fetched; its hashes are checked.
        license: Its licence, if the fetcher knows it; else what README.md states.
        leaves_out_encoders: Take the text model of a Gemma 3n or 4 that also sees and hears; it is refused otherwise. (A
            multimodal Gemma 3 is always taken as its text model.)

    Raises:
        FormatError: A file is missing or damaged, or files contradict each other.
        UnsupportedModelError: The model must not be taken for plain weights of a supported family.
    """
    config = hf_config(path)
    if not leaves_out_encoders:
        refuse_encoders_of(config, path)
    weights = open_weights(path, config)
    tensors = _tensor_source(config, weights, path.name)
    tokenizer, control_tokens = tokenizer_from_hf(path, config.spec.vocab_size)
    hashed = hash_list(path, weights.files)
    hashes = hash_files(hashed)
    check_stated_hashes(path, hashed, hashes, source)
    return Checkpoint(
        name=name or checkpoint_name(path.absolute().name),
        spec=_with_turn_ends(config.spec, control_tokens),
        source=replace(source, sha256=hashes) if source else SourceRecord(uri=str(path), sha256=hashes),
        license=license or hf_license(path),
        tensors=tensors,
        tokenizer=tokenizer,
        chat_template=chat_template_from_hf(path),
        quantization=hf_quantization(weights.tensors, config.packing),
        content_hash=content_hash(hashes),
        left_out=weights.left_out,
    )


def open_weights(path: Path, config: HfConfig | None) -> HfWeights:
    """Read the headers of a directory's weights.

    Args:
        path: The directory.
        config: From `hf_config`; None where that refused, so that nobody knows which tensors the model reads: all are its own.

    Raises:
        FormatError: A file is missing or damaged.
        UnsupportedModelError: Only pickled weights are there.
    """
    files = weight_files(path)
    everything = stored_tensors(path, files)
    if config is None:
        return HfWeights(files, text_tensors(everything, is_multimodal=False), Counter())
    unread = kv_shared_tensors(config.spec)
    texts = text_tensors(everything, is_multimodal=config.is_multimodal)
    left_out = Counter(part for key in everything if config.is_multimodal and (part := encoder_part(key)) is not None)
    return HfWeights(files, {key: value for key, value in texts.items() if key not in unread}, left_out)


def check_weights(config: HfConfig, weights: HfWeights, origin: str) -> None:
    """Compare headers with the config, by name, shape and type; no value is read. Raises as `read_hf`."""
    shapes = family_of(config.spec.model_type).tensor_shapes(config.spec)
    if config.packing is None:
        check_tensor_set(weights.tensors, shapes, origin)
    else:
        check_packed_set(weights.tensors, shapes, config.packing, origin)


def refuse_encoders_of(config: HfConfig, path: Path) -> None:
    """Refuse a checkpoint that also sees and hears, unless it is a Gemma 3, whose text model is what everybody means.

    Raises:
        UnsupportedModelError: It is one.
    """
    if config.is_multimodal and config.spec.model_type != "gemma3_text":
        raise refuse_encoders(config.spec.model_type.removesuffix("_text"), path.absolute().name)


def _tensor_source(config: HfConfig, weights: HfWeights, origin: str) -> TensorSource:
    shapes = family_of(config.spec.model_type).tensor_shapes(config.spec)
    if config.packing is None:
        return HfTensorSource(weights.tensors, shapes, origin)
    return PackedInt4Source(weights.tensors, shapes, config.packing, origin)


def hash_list(path: Path, weights: Mapping[str, Path]) -> dict[str, Path]:
    """Every file of a directory that decides what the checkpoint is, by name."""
    names = ("config.json", _GENERATION_NAME, *TOKENIZER_NAMES)
    return dict(weights) | {name: path / name for name in names if (path / name).exists()}


def hf_config(path: Path) -> HfConfig:
    """What a directory says it is.

    Raises:
        FormatError: config.json or generation_config.json is missing or wrong.
        UnsupportedModelError: Refused by name, see `converters.architectures.refusals`; or packed in a way that is not read.
    """
    name = path.absolute().name
    stated = read_json_object(path / "config.json", max_bytes=_MAX_CONFIG_BYTES)
    packing, config = packing_of(stated, name), without_packing(stated)
    refuse_unsupported_config(config, name)
    text_type = _TEXT_TYPES.get(str(config.get("model_type")))
    if text_type is not None:
        text = dict(Fields(config, "config.json").mapping("text_config"))
        shared = {key: config[key] for key in ("eos_token_id", "bos_token_id", "pad_token_id") if key in config}
        defaults = _GEMMA3_TEXT_DEFAULTS if text_type == "gemma3_text" else {}
        config = defaults | shared | text | {"model_type": text_type}
        refuse_unsupported_config(config, name)
    spec = family_of(Fields(config, "config.json").text("model_type")).spec_from_config(config)
    return HfConfig(_with_generation_stops(spec, path / _GENERATION_NAME), packing, text_type is not None)


def _with_generation_stops(spec: ModelSpec, path: Path) -> ModelSpec:
    """Add the stop tokens of generation_config.json, which for chat models lists more than config.json."""
    if not path.exists():
        return spec
    stops = Fields(read_json_object(path, max_bytes=_MAX_CONFIG_BYTES), path.name).token_ids("eos_token_id", spec.vocab_size)
    return replace(spec, eos_token_ids=tuple(dict.fromkeys((*stops, *spec.eos_token_ids))))


def _with_turn_ends(spec: ModelSpec, special: Mapping[str, int]) -> ModelSpec:
    """Add the vocabulary's own turn ends by name, as for GGUF files."""
    named = (special[text] for text in TURN_END_TOKENS if text in special)
    return replace(spec, eos_token_ids=tuple(dict.fromkeys((*spec.eos_token_ids, *named))))


def hf_quantization(tensors: Mapping[str, StoredTensor], packing: Packing | None = None) -> QuantizationInfo:
    """The dtype most weights are stored in, or how they are packed, and bits per weight over all tensors."""
    sizes: dict[str, int] = {}
    for tensor in tensors.values():
        n_weights = tensor.n_bytes // DTYPE_BYTES[tensor.dtype]
        if packing is not None:
            n_weights = packing.n_weights(tensor.name, n_weights)
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + n_weights
    n_bits = 8 * sum(tensor.n_bytes for tensor in tensors.values())
    name = max(sizes, key=lambda dtype: sizes[dtype]) if packing is None else packing.name
    return QuantizationInfo(name, n_bits / max(1, sum(sizes.values())))


def hf_license(path: Path) -> LicenseRecord:
    """The licence README.md states in its front matter, or `unknown`."""
    try:
        with (path / "README.md").open(encoding="utf-8", errors="replace") as stream:
            text = stream.read(65536)
    except OSError:
        return LicenseRecord(id="unknown")
    front = text.split("\n---", 1)[0] if text.startswith("---") else ""
    fields = {key: re.search(rf"^{key}:[ \t]*([^\s#]+)", front, re.MULTILINE) for key in ("license", "license_link")}
    license_id, link = fields["license"], fields["license_link"]
    return LicenseRecord(id=license_id.group(1).strip("'\"") if license_id else "unknown", url=link.group(1) if link else None)
