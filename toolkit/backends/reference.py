"""transformers in float32 on the CPU: the oracle that other engines are compared with. Slow, and four bytes a weight.

It opens MLX bundles, which keep a checkpoint's config, names and tokenizer; quantized weights are dequantized as MLX defines
them, so it says what a bundle's own numbers mean without rounding on the way.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.backends.base import BackendFacts, Capabilities
from toolkit.backends.constraint import can_constrain
from toolkit.backends.hf_text import HfText
from toolkit.backends.opening import import_library, refused_files
from toolkit.backends.token_loop import TokenEngine
from toolkit.installed import installed_version
from toolkit.limits import check_context_length, check_threads

if TYPE_CHECKING:
    from toolkit.bundle import Bundle

_ROWS = 256


def _import_engine() -> Any:
    def load() -> Any:
        import safetensors  # noqa: F401
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        return torch

    packages = {"torch": "torch", "transformers": "transformers", "safetensors": "safetensors"}
    return import_library(load, engine="reference", extra="convert", packages=packages)


class ReferenceBackend:
    """See `toolkit.backends.base.Backend`. Chosen by name only: `mlx` comes first for its target."""

    name = "reference"
    targets = ("mlx",)

    def probe(self) -> BackendFacts:
        torch = _import_engine()
        detail = f"torch {torch.__version__} with {torch.backends.cpu.get_cpu_capability()}, float32: the oracle, not for use"
        capabilities = Capabilities(clone=True, checkpoint=True, logits=True, constraints=can_constrain())
        return BackendFacts(installed_version("transformers"), ("CPU",), detail, capabilities)

    def open_engine(self, bundle: Bundle, *, context_length: int, threads: int) -> TokenEngine:
        check_threads(threads)
        check_context_length(context_length, most=bundle.manifest.context_length)
        torch = _import_engine()
        torch.set_num_threads(threads)
        folder = bundle.entry_path.parent
        try:
            model = open_model(torch, folder)
            from transformers import AutoTokenizer

            text = HfText(AutoTokenizer.from_pretrained(folder, local_files_only=True))
        except Exception as error:  # the library checks little: any error of Python's or PyTorch's
            fix = "open it without --backend, or convert the checkpoint to float: --to mlx --recipe fp32"
            raise refused_files(bundle, error, by="transformers", fix=fix) from error
        return TokenEngine(
            "reference",
            text,
            lambda: TorchSequence(torch, model),
            context_length=context_length,
            stop_ids=bundle.manifest.stop_token_ids,
            n_vocab=int(model.get_input_embeddings().weight.shape[0]),
            folder=folder,
        )


def open_model(torch: Any, folder: Path) -> Any:
    """The checkpoint a folder's files stand for, in float32.

    Raises:
        ValueError: Weights are missing, left over, or packed in a way that is not known here.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    data = json.loads((folder / "config.json").read_bytes())
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    for name in ("quantization", "quantization_config"):  # MLX's, which transformers would take for its own
        if hasattr(config, name):
            delattr(config, name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    wanted = dict(model.state_dict())
    for name, value in float_weights(torch, folder, data.get("quantization")):
        if name not in wanted:
            raise ValueError(f"transformers has no place for the tensor {name}")
        wanted.pop(name).copy_(value)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if missing := sorted(set(wanted) - tied):
        raise ValueError(f"{len(missing)} tensors are missing, {missing[0]} among them")
    return model


def float_weights(torch: Any, folder: Path, quantization: dict[str, Any] | None) -> Iterator[tuple[str, Any]]:
    """Name and float32 tensor of every weight, one at a time."""
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            for name in sorted(names):
                stem, _, kind = name.rpartition(".")
                if kind in ("scales", "biases") and f"{stem}.scales" in names:
                    continue
                value = file.get_tensor(name)
                if f"{stem}.scales" in names:
                    scales, biases = file.get_tensor(f"{stem}.scales"), file.get_tensor(f"{stem}.biases")
                    yield name, dequantized(torch, value, scales, biases, _form(quantization, stem))
                else:
                    yield name, value.float()


def _form(quantization: dict[str, Any] | None, stem: str) -> tuple[int, int]:
    """(bits, group_size) of one module, which may differ from the model's."""
    chosen = {**(quantization or {})}
    own = chosen.get(stem)
    chosen |= own if isinstance(own, dict) else {}
    if chosen.get("mode", "affine") != "affine" or "bits" not in chosen:
        raise ValueError(f"{stem} is packed as {chosen.get('mode')}, and only affine weights are known here")
    return int(chosen["bits"]), int(chosen["group_size"])


def dequantized(torch: Any, packed: Any, scales: Any, biases: Any, form: tuple[int, int]) -> Any:
    """(out_features, in_features) float32 of MLX's affine codes: scale * code + bias.

    Args:
        torch: The library.
        packed: (out_features, in_features * bits / 32) uint32: each row one little-endian stream of codes.
        scales: (out_features, in_features / group_size).
        biases: As `scales`.
        form: (bits, group_size).
    """
    bits, group_size = form
    n_rows, n_groups = scales.shape
    octets = packed.contiguous().view(torch.uint8).reshape(n_rows, -1)
    shifts, places = torch.arange(8, dtype=torch.uint8), 1 << torch.arange(bits, dtype=torch.int32)
    weight = torch.empty(n_rows, n_groups * group_size)
    for start in range(0, n_rows, _ROWS):  # each bit takes four bytes on the way
        block = slice(start, start + _ROWS)
        stream = (octets[block, :, None] >> shifts) & 1
        codes = (stream.reshape(-1, n_groups, group_size, bits).int() * places).sum(-1)
        values = codes * scales[block].float()[:, :, None] + biases[block].float()[:, :, None]
        weight[block] = values.reshape(-1, n_groups * group_size)
    return weight


class TorchSequence:
    """See `toolkit.backends.token_loop.TokenModel`: transformers' own cache."""

    chunk = 128

    def __init__(self, torch: Any, model: Any, cache: Any = None) -> None:
        self._torch, self._model, self._cache = torch, model, cache
        self._logits: Any = None

    def feed(self, token_ids: Sequence[int]) -> None:
        with self._torch.inference_mode():
            ids = self._torch.tensor([list(token_ids)])
            out = self._model(input_ids=ids, cache=self._cache, use_cache=True, logits_to_keep=1)
        self._cache, self._logits = out.cache, out.logits[0, -1]

    def logits(self) -> Any:
        return self._logits.float().numpy()

    def rewind(self, n_tokens: int) -> None:
        n_held = int(self._cache.get_seq_length())
        if n_held > n_tokens:
            self._cache.crop(n_tokens - n_held)

    def clone(self) -> TorchSequence:
        other = TorchSequence(self._torch, self._model, copy.deepcopy(self._cache))
        other._logits = self._logits
        return other

    def close(self) -> None:
        self._cache = self._logits = None


BACKEND = ReferenceBackend()
