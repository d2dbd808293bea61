"""A PEFT LoRA adapter merged into a checkpoint as its tensors are read: W + scale * B A, nothing kept in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from converters.architectures.base import FloatArray
from converters.architectures.decoder import EMBEDDING, LM_HEAD
from converters.checkpoint import Checkpoint, TensorSource
from converters.read.adapter_config import CONFIG_NAME, AdapterConfig, read_adapter_config
from converters.read.hashes import content_hash, hash_files
from converters.read.names import ADAPTER_MARK, checkpoint_name
from converters.read.safetensors_header import StoredTensor, read_safetensors_header
from converters.read.tensor_bytes import as_float32, read_extent
from converters.stored_blocks import StoredBlocks
from toolkit.errors import FormatError, UnsupportedModelError, UsageError

WEIGHTS_NAME = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_AGAIN = "save the adapter again"
_READABLE = ("F32", "F16", "BF16")
_MATRIX_PARTS = (".lora_A.weight", ".lora_B.weight")
_TABLE_PARTS = (".lora_embedding_A", ".lora_embedding_B")
_COPY_PART = ".base_layer.weight"  # PEFT saves a table it adapts beside the factors


@dataclass(frozen=True)
class LowRank:
    """What is added to a matrix of shape (rows, columns): scale * left @ right, (rows, rank) and (rank, columns).

    An embedding's factors are stored the other way round, and are turned when read.
    """

    left: StoredTensor
    right: StoredTensor
    scale: float
    is_table: bool

    def factors(self) -> tuple[FloatArray, FloatArray]:
        """(rows, rank) and (rank, columns) as float32, without the scale; an embedding's are views of what is stored."""
        left, right = _load(self.left), _load(self.right)
        if self.is_table:  # A is (rank, vocab), B (hidden, rank): the table's rows are A's columns
            left, right = left.T, right.T
        return left, right


class AdaptedTensorSource:
    """The tensors of a base model with an adapter's low-rank products added. Only what is asked for is computed."""

    def __init__(self, base: TensorSource, added: Mapping[str, LowRank]) -> None:
        self._base, self._added = base, dict(added)

    def names(self) -> tuple[str, ...]:
        return self._base.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._base.shape(name)

    def load(self, name: str) -> FloatArray:
        """One tensor as float32."""
        if name not in self._added:
            return self._base.load(name)
        merged: FloatArray = np.empty(self.shape(name), np.float32)
        start = 0
        for block in self.blocks(name):
            merged[start : start + len(block)] = block
            start += len(block)
        return merged

    def blocks(self, name: str) -> Iterator[FloatArray]:
        """The same values as consecutive blocks of rows; a matrix' factors are read once."""
        added = self._added.get(name)
        if added is None:
            yield from self._base.blocks(name)
            return
        left, right = added.factors()
        start = 0
        for block in self._base.blocks(name):
            product: FloatArray = left[start : start + len(block)] @ right
            product *= np.float32(added.scale)
            product += block
            yield product
            start += len(block)

    def stored_kind(self, name: str) -> str | None:
        """None for adapted tensors: they are no longer the source's own."""
        return None if name in self._added else self._base.stored_kind(name)

    def stored(self, name: str) -> StoredBlocks | None:
        """None for adapted tensors."""
        return None if name in self._added else self._base.stored(name)


def apply_adapter(checkpoint: Checkpoint, directory: Path) -> Checkpoint:
    """The checkpoint with an adapter merged in; its name, source and content hash say so.

    Args:
        checkpoint: The base model.
        directory: Holds adapter_config.json and adapter_model.safetensors.

    Raises:
        UsageError: The adapter was made for another base model.
        FormatError: A file is missing or damaged, or a tensor does not fit the base model.
        UnsupportedModelError: It is no plain LoRA, or changes a table that embedding and head share.
    """
    if not (directory / CONFIG_NAME).is_file():
        why = f"it has no {CONFIG_NAME}" if directory.is_dir() else "there is no such folder"
        raise UsageError(f"{directory} is no PEFT adapter", why=why, fix="give --adapter the folder that PEFT's save_pretrained wrote")
    config = read_adapter_config(directory)
    _check_base(checkpoint, config, directory)
    files = {name: directory / name for name in (CONFIG_NAME, WEIGHTS_NAME)}
    _check_readable(directory)
    added = _low_ranks(checkpoint, config, directory)
    hashes = {f"adapter/{name}": sha256 for name, sha256 in hash_files(files).items()}
    source = checkpoint.source
    return replace(
        checkpoint,
        name=f"{checkpoint.name}-{checkpoint_name(directory.absolute().name)}",
        tensors=AdaptedTensorSource(checkpoint.tensors, added),
        source=replace(source, uri=f"{source.uri}{ADAPTER_MARK}{directory}", sha256=source.sha256 | hashes),
        content_hash=content_hash({"base": checkpoint.content_hash, **hashes}),
    )


def _check_base(checkpoint: Checkpoint, config: AdapterConfig, directory: Path) -> None:
    """The base's own name, and its commit where both sides know one."""
    stated = checkpoint_name(config.base_name.replace("\\", "/").rstrip("/").rpartition("/")[2])
    revision, wanted = checkpoint.source.revision, config.base_revision
    is_other_name = bool(config.base_name) and stated != checkpoint.name and stated not in checkpoint.source.uri.lower()
    is_other_revision = revision is not None and wanted is not None and len(wanted) == 40 and wanted != revision
    if is_other_name or is_other_revision:
        found = f"{checkpoint.name} at {revision}" if is_other_revision else checkpoint.name
        raise UsageError(
            f"the adapter {directory.name} was not made for {checkpoint.name}",
            why=f"its base model is {config.base_name}{f' at {wanted}' if is_other_revision else ''}, this is {found}",
            fix=f"give its own base model, or correct base_model_name_or_path in {CONFIG_NAME} if this is it under another name",
        )


def _check_readable(directory: Path) -> None:
    if not (directory / WEIGHTS_NAME).is_file():
        pickled = (directory / "adapter_model.bin").exists()
        why = "adapter_model.bin is a pickle, and reading a pickle can run any code in it" if pickled else f"there is no {WEIGHTS_NAME}"
        fix = "save it as safetensors: model.save_pretrained(folder, safe_serialization=True)"
        raise FormatError(f"the adapter {directory.name} has no weights that can be read", why=why, fix=fix)


def _low_ranks(checkpoint: Checkpoint, config: AdapterConfig, directory: Path) -> dict[str, LowRank]:
    """Hugging Face tensor name -> what is added to it; every tensor of the file has its place."""
    stored = read_safetensors_header(directory / WEIGHTS_NAME)
    pairs: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in stored.items():
        if name.endswith(_COPY_PART):
            _check_copy(checkpoint, name.removeprefix(_PREFIX).removesuffix(_COPY_PART), tensor, directory)
            continue
        part = next((part for part in (*_MATRIX_PARTS, *_TABLE_PARTS) if name.endswith(part)), None)
        module = name.removeprefix(_PREFIX).removesuffix(part or "")
        if part is None or not name.startswith(_PREFIX) or f"{module}.weight" not in checkpoint.tensors.names():
            _refuse_tied(checkpoint, module, directory)
            raise _misfit(directory, f"{name[:120]} belongs to no matrix of the base model")
        pairs.setdefault(module, {})[part] = tensor
    if not pairs:
        raise _misfit(directory, "it holds no tensors")
    return {f"{module}.weight": _low_rank(checkpoint, config, directory, module, parts) for module, parts in pairs.items()}


def _check_copy(checkpoint: Checkpoint, module: str, copy: StoredTensor, directory: Path) -> None:
    """A table saved with the adapter must be the base model's own, or merging would need the whole of it."""
    _refuse_tied(checkpoint, module, directory)
    name = f"{module}.weight"
    is_known = name in checkpoint.tensors.names() and copy.dtype in _READABLE and copy.shape == checkpoint.tensors.shape(name)
    if not is_known or not _is_equal(copy, checkpoint.tensors.blocks(name)):
        raise UnsupportedModelError(
            f"the adapter {directory.name} cannot be merged",
            why=f"it carries a {module} of its own, {copy.dtype} {copy.shape}, which is not the base model's",
            fix="merge it with PEFT (merge_and_unload) and convert the result",
        )


def _is_equal(copy: StoredTensor, blocks: Iterator[FloatArray]) -> bool:
    """Compare a stored table with consecutive blocks of rows; a table can be too large to be held twice."""
    row_bytes, start = copy.n_bytes // copy.shape[0], 0
    for block in blocks:
        raw = read_extent(copy.path, copy.offset + start * row_bytes, len(block) * row_bytes, copy.name, fix=_AGAIN)
        if not np.array_equal(as_float32(raw, copy.dtype).reshape(block.shape), block):
            return False
        start += len(block)
    return True


def _low_rank(checkpoint: Checkpoint, config: AdapterConfig, directory: Path, module: str, parts: dict[str, StoredTensor]) -> LowRank:
    is_table = f"{module}.weight" == EMBEDDING
    if is_table:
        _refuse_tied(checkpoint, module, directory)
    wanted = _TABLE_PARTS if is_table else _MATRIX_PARTS
    if set(parts) != set(wanted):
        raise _misfit(directory, f"{module} has {', '.join(sorted(parts))}; it needs {' and '.join(wanted)}")
    first, second = parts[wanted[0]], parts[wanted[1]]
    rows, columns = checkpoint.tensors.shape(f"{module}.weight")
    rank = config.rank_of(module)
    shapes = ((rank, rows), (columns, rank)) if is_table else ((rank, columns), (rows, rank))
    for tensor, shape in zip((first, second), shapes, strict=True):
        if tensor.shape != shape:
            raise _misfit(directory, f"{tensor.name} has shape {tensor.shape}, base model and rank ask for {shape}")
        if tensor.dtype not in _READABLE:
            raise _misfit(directory, f"{tensor.name} is {tensor.dtype}; {', '.join(_READABLE)} are read")
    left, right = (first, second) if is_table else (second, first)
    return LowRank(left, right, config.scale_of(module), is_table)


def _refuse_tied(checkpoint: Checkpoint, module: str, directory: Path) -> None:
    """Merged, the shared table would change in both places; beside the model, the adapter changes one of them."""
    if checkpoint.spec.tie_embeddings and f"{module}.weight" in (EMBEDDING, LM_HEAD):
        raise UnsupportedModelError(
            f"the adapter {directory.name} cannot be merged",
            why=f"it adapts {module}, whose table embedding and head of {checkpoint.name} share",
            fix="train an adapter without it (target_modules of the layers alone)",
        )


def _misfit(directory: Path, why: str) -> FormatError:
    return FormatError(f"the adapter {directory.name} does not fit", why=why, fix="give the base model it was trained on, or save it again")


def _load(tensor: StoredTensor) -> FloatArray:
    raw = read_extent(tensor.path, tensor.offset, tensor.n_bytes, tensor.name, fix=_AGAIN)
    array = as_float32(raw, tensor.dtype).reshape(tensor.shape)
    if not np.isfinite(array).all():
        raise FormatError(
            f"{tensor.path.name} holds damaged weights", why=f"{tensor.name} has NaN or infinite values", fix="train it again"
        )
    return array
