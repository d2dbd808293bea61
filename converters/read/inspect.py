"""What a source is, answered from headers and file hashes: licence, quantization, targets, dimensions. No weight is loaded."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from converters.architectures import family_of_gguf
from converters.architectures.whisper import tensor_shapes as whisper_shapes
from converters.read import local_path, model_path, reader_kind
from converters.read.ctranslate2 import MODEL_NAME, SPEC_NAME, ctranslate2_quantization, ctranslate2_spec, model_files
from converters.read.ctranslate2_header import read_ctranslate2_header
from converters.read.ctranslate2_tensors import check_variables
from converters.read.gguf import gguf_license, gguf_quantization, gguf_spec
from converters.read.gguf_tensors import GgufFile
from converters.read.gguf_tensors import check_tensor_set as gguf_tensor_set
from converters.read.hashes import content_hash, hash_files
from converters.read.hf import (
    check_weights,
    hash_list,
    hf_config,
    hf_license,
    hf_quantization,
    open_weights,
    refuse_encoders_of,
)
from converters.read.hf_tokenizer import chat_template_from_hf
from converters.read.names import checkpoint_name
from converters.read.ollama import find_ollama, is_ollama, license_id
from converters.spec import ModelSpec
from converters.whisper_spec import WhisperSpec
from toolkit.catalog import CatalogModel, PypiSource, load_catalog
from toolkit.errors import UnsupportedModelError
from toolkit.manifest import LicenseRecord, SourceRecord

_KV_DTYPES = {"float32": 4, "float16": 2, "int8": 1}


def inspect_source(source: str) -> dict[str, Any]:
    """Facts about a source as JSON data.

    A model of the catalog that was not fetched yet is answered from the catalog alone (`is_fetched` false); other remote
    sources are fetched first.

    Returns:
        name, format, is_fetched, source, license, quantization {name, bits_per_weight}, weights_bytes, n_parameters,
        targets (names; empty with the reason in `unsupported`), sha256 by file, content_hash, model_type, architecture,
        context_length, kv_bytes_per_token by dtype, dims, chat, chat_template. What cannot be known is None.

    Raises:
        UsageError: No such source.
        FormatError: A file is damaged.
    """
    if is_ollama(source):
        stored = find_ollama(source)
        facts = _local_facts(stored.blob, stored.name.checkpoint, stored.source)
        is_layer_asked = facts["license"]["id"] == "unknown" and stored.license_text
        return facts | {"license": asdict(LicenseRecord(license_id(stored.license_text)))} if is_layer_asked else facts
    path = local_path(source)
    if path is not None:
        return _local_facts(model_path(path), checkpoint_name(path.stem if path.is_file() else path.absolute().name), SourceRecord(source))
    model = load_catalog().models.get(source)
    if model is not None:
        return _catalog_facts(model)
    from toolkit.fetch import fetch
    from toolkit.progress import byte_progress

    fetched = fetch(source, progress=byte_progress())
    return _local_facts(model_path(fetched.path), checkpoint_name(fetched.name), fetched.source, fetched.license)


def _catalog_facts(model: CatalogModel) -> dict[str, Any]:
    from toolkit.licenses import accepted_at
    from toolkit.sources.pypi import stored_entry

    license_record = LicenseRecord(model.license.id, model.license.url, accepted_at(model.license.id))
    for source in model.sources:
        if isinstance(source, PypiSource) and (entry := stored_entry(source)) is not None:
            return _local_facts(model_path(entry.path), model.name, SourceRecord(source.uri), license_record)
    unknown = ("format", "quantization", "weights_bytes", "targets", "unsupported", "content_hash", "model_type", "architecture")
    facts = dict.fromkeys((*unknown, "context_length", "kv_bytes_per_token", "dims", "chat", "chat_template"))
    return facts | {
        "name": model.name,
        "is_fetched": False,
        "source": {"uri": model.sources[0].uri, "revision": None},
        "license": asdict(license_record),
        "n_parameters": model.n_parameters,
        "sha256": {},
    }


def _local_facts(path: Path, name: str, source: SourceRecord, license_record: LicenseRecord | None = None) -> dict[str, Any]:
    kind = reader_kind(path)
    facts = {"gguf": _gguf_facts, "hf": _hf_facts, "ctranslate2": _ctranslate2_facts}[kind](path)
    stated = license_record or facts.pop("license")
    return {
        "name": name,
        "format": kind,
        "is_fetched": True,
        "source": {"uri": source.uri, "revision": source.revision},
        **facts,
        "license": asdict(stated),
        "content_hash": content_hash(facts["sha256"]),
    }


def _gguf_facts(path: Path) -> dict[str, Any]:
    file = GgufFile(path)
    try:
        spec = gguf_spec(file)
        gguf_tensor_set(file, family_of_gguf(str(file.metadata["general.architecture"])), spec)
        facts = _spec_facts(spec)
    except UnsupportedModelError as error:
        facts = _refused(error, file.metadata.get("general.architecture"))
    template = file.metadata.get("tokenizer.chat_template")
    template = template if isinstance(template, str) and template.strip() else None
    return facts | {
        "quantization": asdict(gguf_quantization(file.header)),
        "weights_bytes": sum(tensor.n_bytes for tensor in file.header.tensors.values()),
        "sha256": hash_files({path.name: path}),
        "license": gguf_license(file.header),
        "chat": template is not None,
        "chat_template": template,
    }


def _hf_facts(path: Path) -> dict[str, Any]:
    config, facts = None, {}
    try:
        config = hf_config(path)
    except UnsupportedModelError as error:
        facts = _refused(error, None)
    weights = open_weights(path, config)
    if config is not None:
        try:
            refuse_encoders_of(config, path)
            check_weights(config, weights, path.name)
            facts = _spec_facts(config.spec)
        except UnsupportedModelError as error:
            facts = _refused(error, config.spec.model_type)
    template = chat_template_from_hf(path)
    return facts | {
        "quantization": asdict(hf_quantization(weights.tensors, config.packing if config else None)),
        "weights_bytes": sum(tensor.n_bytes for tensor in weights.tensors.values()),
        "sha256": hash_files(hash_list(path, weights.files)),
        "license": hf_license(path),
        "chat": template is not None,
        "chat_template": template,
    }


def _ctranslate2_facts(path: Path) -> dict[str, Any]:
    header = read_ctranslate2_header(path / MODEL_NAME)
    try:
        spec, _ = ctranslate2_spec(path, header)
        check_variables(header, whisper_shapes(spec), MODEL_NAME)
        facts = _whisper_facts(spec)
    except UnsupportedModelError as error:
        facts = _refused(error, "whisper" if header.spec_name == SPEC_NAME else header.spec_name)
    return facts | {
        "quantization": asdict(ctranslate2_quantization(header)),
        "weights_bytes": sum(variable.n_bytes for variable in header.variables.values()),
        "sha256": hash_files({file.name: file for file in model_files(path)}),
        "license": LicenseRecord("unknown"),
        "chat": False,
        "chat_template": None,
    }


def _whisper_facts(spec: WhisperSpec) -> dict[str, Any]:
    from converters.targets import SPEECH_TARGETS

    stacks = {
        f"{name}_{key}": value
        for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder))
        for key, value in asdict(stack).items()
    }
    return {
        "n_parameters": spec.n_parameters,
        "targets": sorted(SPEECH_TARGETS),
        "unsupported": None,
        "model_type": spec.model_type,
        "architecture": spec.architecture,
        "context_length": spec.max_context_length,
        "kv_bytes_per_token": {dtype: spec.kv_bytes_per_token(size) for dtype, size in _KV_DTYPES.items()},
        "dims": {"hidden_size": spec.hidden_size, "vocab_size": spec.vocab_size, "n_mels": spec.n_mels, **stacks},
    }


def _spec_facts(spec: ModelSpec) -> dict[str, Any]:
    from converters.targets import targets_for

    dims = ("n_layers", "hidden_size", "intermediate_size", "n_heads", "n_kv_heads", "head_dim", "vocab_size", "sliding_window")
    return {
        "n_parameters": spec.n_parameters,
        "targets": targets_for(spec.model_type),
        "unsupported": None,
        "model_type": spec.model_type,
        "architecture": spec.architecture,
        "context_length": spec.max_context_length,
        "kv_bytes_per_token": {dtype: spec.kv_bytes_per_token(size) for dtype, size in _KV_DTYPES.items()},
        "dims": {name: getattr(spec, name) for name in dims},
    }


def _refused(error: UnsupportedModelError, model_type: Any) -> dict[str, Any]:
    """Facts of a model that cannot be converted: the reason stands where its dimensions would."""
    facts = dict.fromkeys(("n_parameters", "architecture", "context_length", "kv_bytes_per_token", "dims"))
    reason = {"what": error.what, "why": error.why, "fix": error.fix}
    return facts | {"targets": [], "unsupported": reason, "model_type": model_type if isinstance(model_type, str) else None}
