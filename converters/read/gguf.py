"""Reader for `file.gguf`: header proven first, weights dequantized one tensor at a time."""

from __future__ import annotations

from pathlib import Path

from converters.architectures import family_of_gguf
from converters.architectures.refusals import refuse_unsupported_gguf
from converters.checkpoint import Checkpoint, QuantizationInfo
from converters.read.gguf_header import GgufHeader
from converters.read.gguf_tensors import GgufFile, GgufTensorSource
from converters.read.gguf_tokenizer import tokenizer_from_gguf
from converters.read.hashes import check_stated_hashes, content_hash, hash_files
from converters.read.names import checkpoint_name
from converters.spec import ModelSpec
from toolkit.errors import FormatError
from toolkit.manifest import LicenseRecord, SourceRecord

# general.file_type: what llama.cpp calls the mixture of tensor types in the file.
_FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    32: "BF16",
}


def read_gguf(
    path: Path, *, name: str | None = None, source: SourceRecord | None = None, license: LicenseRecord | None = None
) -> Checkpoint:
    """Read a GGUF file; weights stay on disk.

    Args:
        path: The file.
        name: Name of the checkpoint; the file's own name, cleaned, by default.
        source: Where the file came from, if it was fetched.
        license: Its licence, if the fetcher knows it; else what the header says.

    Raises:
        FormatError: The file is damaged.
        UnsupportedModelError: The architecture, tokenizer or storage cannot be read.
    """
    file = GgufFile(path)
    spec = gguf_spec(file)
    family = family_of_gguf(str(file.metadata["general.architecture"]))
    tensors = GgufTensorSource(file, family, spec)
    template = file.metadata.get("tokenizer.chat_template")
    hashes = hash_files({path.name: path})
    check_stated_hashes(path.parent, {path.name: path}, hashes, source)
    return Checkpoint(
        name=name or checkpoint_name(path.stem),
        spec=spec,
        source=source or SourceRecord(uri=str(path), sha256=hashes),
        license=license or gguf_license(file.header),
        tensors=tensors,
        tokenizer=tokenizer_from_gguf(file.metadata, path.name, spec.vocab_size),
        chat_template=template if isinstance(template, str) and template.strip() else None,
        quantization=gguf_quantization(file.header),
        content_hash=content_hash(hashes),
    )


def gguf_spec(file: GgufFile) -> ModelSpec:
    """The spec of a GGUF file, after refusing what is not supported by name."""
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise FormatError(f"{file.name} does not name its architecture", why="general.architecture is missing", fix="download it again")
    refuse_unsupported_gguf(file.metadata, file.name)
    return family_of_gguf(architecture).spec_from_gguf(file)


def gguf_quantization(header: GgufHeader) -> QuantizationInfo:
    """The name of the mixture (the commonest quantized type if the header gives none) and bits per weight over all tensors."""
    weights: dict[str, int] = {}
    n_bits = n_weights = 0
    for tensor in header.tensors.values():
        count = tensor.n_bytes // tensor.type.block_bytes * tensor.type.block_size
        n_bits, n_weights = n_bits + 8 * tensor.n_bytes, n_weights + count
        if len(tensor.shape) > 1:
            weights[tensor.type.name] = weights.get(tensor.type.name, 0) + count
    commonest = max(weights, key=lambda name: weights[name]) if weights else "F32"
    stated = header.metadata.get("general.file_type")
    name = _FILE_TYPES.get(stated, commonest) if isinstance(stated, int) else commonest
    return QuantizationInfo(name, n_bits / max(1, n_weights))


def gguf_license(header: GgufHeader) -> LicenseRecord:
    """The licence a GGUF header states, or `unknown`."""
    stated, link = header.metadata.get("general.license"), header.metadata.get("general.license.link")
    return LicenseRecord(id=stated if isinstance(stated, str) and stated else "unknown", url=link if isinstance(link, str) else None)
