"""Weights of a Hugging Face directory as float32, one tensor or one block of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from converters.architectures.base import FloatArray
from converters.architectures.decoder import EMBEDDING, LM_HEAD, deciding_keys
from converters.read.json_file import damaged_json, read_json_object
from converters.read.safetensors_header import StoredTensor, read_safetensors_header
from converters.read.tensor_bytes import as_float32, read_extent
from converters.stored_blocks import FloatStored
from toolkit.errors import FormatError, UnsupportedModelError

BLOCK_BYTES = 16 * 2**20
WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
_MAX_INDEX_BYTES = 16 * 2**20
_READABLE = ("F32", "F16", "BF16")
# What a multimodal Gemma puts before the names of its text model, oldest spelling first.
_TEXT_PREFIXES = {"language_model.model.": "model.", "language_model.lm_head.": "lm_head.", "model.language_model.": "model."}
_ENCODER_PARTS = ("vision_tower", "multi_modal_projector", "audio_tower", "embed_vision", "embed_audio")


def weight_files(directory: Path) -> dict[str, Path]:
    """Weight files (and their index) of a directory by name.

    Raises:
        FormatError: There are none, the index is damaged, names a file outside the directory, or one that is missing.
        UnsupportedModelError: Only pickled weights are there.
    """
    index_path, single = directory / INDEX_NAME, directory / WEIGHTS_NAME
    if single.exists():  # first, as transformers looks for it first
        return {WEIGHTS_NAME: single}
    if index_path.exists():
        shards = sorted(set(_weight_map(index_path).values()))
        return {INDEX_NAME: index_path} | {shard: directory / shard for shard in shards}
    if (directory / "adapter_config.json").exists():
        raise UnsupportedModelError(
            f"{directory.name} is an adapter, not a model",
            why="it has adapter_config.json and no weights",
            fix="merge it into its base model",
        )
    if any(directory.glob("*.bin")) or any(directory.glob("*.pt*")):
        raise UnsupportedModelError(
            f"{directory.name} holds pickled weights only",
            why="reading a pickle can run any code it contains",
            fix="save it as safetensors first: model.save_pretrained(folder, safe_serialization=True)",
        )
    raise FormatError(
        f"{directory.name} holds no weights", why=f"there is neither {WEIGHTS_NAME} nor {INDEX_NAME}", fix="download the checkpoint again"
    )


def _weight_map(path: Path) -> dict[str, str]:
    weight_map = read_json_object(path, max_bytes=_MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise damaged_json(path, "weight_map is missing or empty")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard or "\\" in shard or not shard.endswith(".safetensors"):
            raise damaged_json(path, f"{name[:80]} is said to be in {str(shard)[:80]!r}, which is no plain .safetensors name")
    return weight_map


def stored_tensors(directory: Path, files: Mapping[str, Path]) -> dict[str, StoredTensor]:
    """Every tensor of the directory by its stored name; shards are compared with their index.

    Raises:
        FormatError: A header is damaged, a tensor is in two shards, or index and shards disagree.
    """
    tensors: dict[str, StoredTensor] = {}
    for name, path in files.items():
        if name == INDEX_NAME:
            continue
        for tensor in read_safetensors_header(path).values():
            if tensor.name in tensors:
                raise damaged_json(path, f"{tensor.name} is also in {tensors[tensor.name].path.name}")
            tensors[tensor.name] = tensor
    if INDEX_NAME in files:
        index = _weight_map(files[INDEX_NAME])
        wrong = [name for name in index if name not in tensors or tensors[name].path.name != index[name]]
        wrong += [name for name in tensors if name not in index]
        if wrong:
            raise damaged_json(files[INDEX_NAME], f"{len(wrong)} tensors are not where it says, first {wrong[0][:80]}")
    return tensors


def text_tensors(tensors: Mapping[str, StoredTensor], *, is_multimodal: bool) -> dict[str, StoredTensor]:
    """Tensors under plain text-model names; vision and audio tensors of a multimodal checkpoint are left out."""
    result: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        if name.endswith("rotary_emb.inv_freq"):  # a table some old checkpoints carry; it follows from the config
            continue
        if is_multimodal:
            if encoder_part(name) is not None:
                continue
            prefix = next((p for p in _TEXT_PREFIXES if name.startswith(p)), None)
            name = _TEXT_PREFIXES[prefix] + name.removeprefix(prefix) if prefix else name
        result[name] = tensor
    return result


def encoder_part(name: str) -> str | None:
    """The vision or audio part of a multimodal checkpoint that a stored tensor belongs to; None for the text model's."""
    part = name.removeprefix("model.").partition(".")[0]
    return part if part in _ENCODER_PARTS else None


def check_tensor_set(tensors: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]], origin: str) -> None:
    """Compare what is stored with what the spec needs, by name, shape and type; no value is read.

    Raises:
        FormatError: A tensor is missing, unknown, or has another shape.
        UnsupportedModelError: A tensor is stored as something other than F32, F16 or BF16.
    """
    missing = [name for name in shapes if name not in tensors]
    extra = [name for name in tensors if name not in shapes and name != LM_HEAD]
    if missing == [LM_HEAD]:
        raise FormatError(
            f"{origin} has no lm_head.weight",
            why="config.json says tie_word_embeddings false (or nothing), so the output layer must be stored",
            fix="set tie_word_embeddings to true in config.json if the model shares its embeddings, else download it again",
        )
    if missing or extra:
        parts = [f"{len(group)} {kind}, first {group[0][:80]}" for kind, group in (("missing", missing), ("unknown", extra)) if group]
        layers = {name.split(".")[2] for name in (*missing, *extra) if name.startswith("model.layers.")}
        why = "; ".join(parts) + (" (is num_hidden_layers right?)" if layers and not layers & {"0"} else "")
        raise FormatError(f"{origin} does not hold the tensors its config.json asks for", why=why, fix="download it again")
    for name, shape in shapes.items():
        tensor = tensors[name]
        if tensor.shape != shape:
            why = f"{name} has shape {tensor.shape}, config.json asks for {shape} by {deciding_keys(name)}"
            raise FormatError(f"{origin} does not match its config.json", why=why, fix="download it again, or correct that key")
        if tensor.dtype not in _READABLE:
            raise UnsupportedModelError(
                f"{origin} stores weights as {tensor.dtype}",
                why=f"{name} is {tensor.dtype}; {', '.join(_READABLE)} are read, packed codes are not",
                fix="use the float checkpoint it was made from",
            )


class HfTensorSource(FloatStored):
    """Tensors of a Hugging Face directory.

    Args:
        tensors: Stored tensors by text-model name.
        shapes: What the spec needs: name to shape.
        origin: The checkpoint's name, for errors.

    Raises (on creation):
        FormatError: A tensor is missing, unknown, or has another shape; a tied lm_head differs from the embeddings.
        UnsupportedModelError: A tensor is stored as something other than F32, F16 or BF16.
    """

    def __init__(self, tensors: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]], origin: str) -> None:
        self._tensors, self._shapes, self.origin = dict(tensors), dict(shapes), origin
        check_tensor_set(self._tensors, self._shapes, origin)
        if LM_HEAD not in self._shapes and LM_HEAD in self._tensors:
            self._check_tied_head()

    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def load(self, name: str) -> FloatArray:
        """One tensor as float32."""
        out = np.empty(self._tensors[name].shape, np.float32)
        rows, start = out.reshape(-1, out.shape[-1]), 0
        for block in self.blocks(name):
            rows[start : start + len(block)] = block
            start += len(block)
        return out

    def blocks(self, name: str) -> Iterator[FloatArray]:
        """Consecutive rows as (n_rows, row_length) float32 blocks of at most `BLOCK_BYTES` (or one row).

        Raises:
            FormatError: The file shrank since its header was read, or a value is NaN or infinite.
        """
        tensor = self._tensors[name]
        row_length = tensor.shape[-1]
        n_rows = int(np.prod(tensor.shape[:-1], dtype=np.int64))
        row_bytes = tensor.n_bytes // n_rows
        step = max(1, BLOCK_BYTES // (4 * row_length))
        for start in range(0, n_rows, step):
            count = min(step, n_rows - start)
            raw = read_extent(tensor.path, tensor.offset + start * row_bytes, count * row_bytes, name)
            block = as_float32(raw, tensor.dtype).reshape(count, row_length)
            if not np.isfinite(block).all():
                raise FormatError(
                    f"{tensor.path.name} holds damaged weights",
                    why=f"{name} has NaN or infinite values",
                    fix="download it again and compare its SHA-256 with the publisher's",
                )
            yield block

    def _check_tied_head(self) -> None:
        """A tied checkpoint may store the output layer again, as long as it is the same table."""
        self._shapes[LM_HEAD] = self._shapes[EMBEDDING]
        try:
            check_tensor_set(self._tensors, self._shapes, self.origin)
            same = all(np.array_equal(a, b) for a, b in zip(self.blocks(EMBEDDING), self.blocks(LM_HEAD), strict=True))
        finally:
            del self._shapes[LM_HEAD]
        if not same:
            raise FormatError(
                f"{self.origin} contradicts itself about its output layer",
                why="config.json ties it to the embeddings, but the stored lm_head.weight has other values",
                fix="set tie_word_embeddings to false in config.json if the stored layer is the right one",
            )
