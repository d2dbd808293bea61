"""llama.cpp's C API, out of the library that the xllamacpp wheel carries: load a file, tokenize, decode, read logits.

The wheel's own Python API serves a chat, not logits, so its library is called directly. Structures are laid out as in
the llama.h of that very build: another version is refused, and so is one whose defaults are not where they should be.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.errors import BackendUnavailableError, EngineError

DISTRIBUTION = "xllamacpp"
VERSION = "2026.10.11549"
_INSTALL = "pip install 'ondevice-toolkit[gguf]'"
_WITHOUT = f"pip uninstall {DISTRIBUTION}, and GGUF bundles are measured in PyTorch"
_INT, _UINT, _FLOAT, _POINTER, _BOOL = ctypes.c_int32, ctypes.c_uint32, ctypes.c_float, ctypes.c_void_p, ctypes.c_bool
_ERROR_LEVEL = 4
_F32 = 0  # ggml_type
_OFF = 0  # llama_flash_attn_type
_Fields = list[tuple[str, Any]]


def _same(kind: Any, names: str) -> _Fields:
    return [(name, kind) for name in names.split()]


class _ModelParams(ctypes.Structure):
    _fields_ = [
        *_same(_POINTER, "devices tensor_buft_overrides"),
        *_same(_INT, "n_gpu_layers split_mode load_mode lazy_mode main_gpu"),
        *_same(_POINTER, "tensor_split progress_callback progress_callback_user_data kv_overrides"),
        *_same(_BOOL, "vocab_only check_tensors use_extra_bufts no_host no_alloc load_mtp"),
    ]


class _ContextParams(ctypes.Structure):
    _fields_ = [
        *_same(_UINT, "n_ctx n_batch n_ubatch n_seq_max n_rs_seq n_outputs_max n_outputs_max_per_seq"),
        *_same(_INT, "n_threads n_threads_batch ctx_type rope_scaling_type pooling_type attention_type flash_attn_type"),
        *_same(_FLOAT, "rope_freq_base rope_freq_scale yarn_ext_factor yarn_attn_factor yarn_beta_fast yarn_beta_slow"),
        ("yarn_orig_ctx", _UINT),
        ("defrag_thold", _FLOAT),
        *_same(_POINTER, "cb_eval cb_eval_user_data"),
        *_same(_INT, "type_k type_v"),
        ("moe_cache_size", ctypes.c_size_t),
        *_same(_POINTER, "abort_callback abort_callback_data"),
        *_same(_BOOL, "embeddings offload_kqv no_perf op_offload swa_full kv_unified"),
        ("samplers", _POINTER),
        ("n_samplers", ctypes.c_size_t),
        ("ctx_other", _POINTER),
    ]


class _Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", _INT),
        ("token", ctypes.POINTER(_INT)),
        ("embd", _POINTER),
        ("pos", ctypes.POINTER(_INT)),
        ("n_seq_id", ctypes.POINTER(_INT)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(_INT))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


_LogCallback = ctypes.CFUNCTYPE(None, _INT, ctypes.c_char_p, _POINTER)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "llama_backend_init": (None, []),
    "llama_log_set": (None, [_LogCallback, _POINTER]),
    "llama_model_default_params": (_ModelParams, []),
    "llama_context_default_params": (_ContextParams, []),
    "llama_model_load_from_file": (_POINTER, [ctypes.c_char_p, _ModelParams]),
    "llama_model_free": (None, [_POINTER]),
    "llama_model_get_vocab": (_POINTER, [_POINTER]),
    "llama_vocab_n_tokens": (_INT, [_POINTER]),
    "llama_vocab_is_eog": (_BOOL, [_POINTER, _INT]),
    "llama_tokenize": (_INT, [_POINTER, ctypes.c_char_p, _INT, ctypes.POINTER(_INT), _INT, _BOOL, _BOOL]),
    "llama_init_from_model": (_POINTER, [_POINTER, _ContextParams]),
    "llama_free": (None, [_POINTER]),
    "llama_get_memory": (_POINTER, [_POINTER]),
    "llama_memory_clear": (None, [_POINTER, _BOOL]),
    "llama_batch_init": (_Batch, [_INT, _INT, _INT]),
    "llama_batch_free": (None, [_Batch]),
    "llama_decode": (_INT, [_POINTER, _Batch]),
    "llama_get_logits": (ctypes.POINTER(_FLOAT), [_POINTER]),
}
# Defaults that stand at the end, the middle and the start of the two structures: if these are right, so is the layout.
_MODEL_DEFAULTS = {"n_gpu_layers": -1, "split_mode": 1, "vocab_only": False, "use_extra_bufts": True, "load_mtp": False}
_CONTEXT_DEFAULTS = {"n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "flash_attn_type": -1, "yarn_ext_factor": -1.0}
_CONTEXT_DEFAULTS |= {"type_k": 1, "type_v": 1, "offload_kqv": True, "no_perf": True, "embeddings": False, "n_samplers": 0}


def installed_version() -> str | None:
    """The version of the wheel that is here; None if there is none. Imports nothing."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def is_available() -> bool:
    """Whether the very build this module knows is installed."""
    return installed_version() == VERSION


class LlamaCpp:
    """The library, loaded into this process; what it logs is kept instead of printed.

    Raises:
        BackendUnavailableError: The wheel is missing, has another version, or keeps its C API to itself.
    """

    def __init__(self) -> None:
        if not is_available():
            raise _unavailable(f"{DISTRIBUTION} {VERSION} is needed, found {installed_version() or 'none'}", _INSTALL)
        # Threads that wait by spinning take the cores from each other where two files are measured at a time: 5 x slower.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        extension = importlib.import_module(f"{DISTRIBUTION}.{DISTRIBUTION}")
        self._library = ctypes.CDLL(str(extension.__file__))
        self._calls: dict[str, Any] = {}
        for name, (result, arguments) in _SIGNATURES.items():
            try:
                function = getattr(self._library, name)
            except AttributeError as error:
                raise _unavailable(f"the library of {DISTRIBUTION} {VERSION} has no {name} on this platform", _WITHOUT) from error
            function.restype, function.argtypes = result, arguments
            self._calls[name] = function
        self.log: list[str] = []
        self._keep = _LogCallback(self._remember)
        self.call("llama_log_set", self._keep, None)
        self.call("llama_backend_init")
        _check_defaults(self.call("llama_model_default_params"), _MODEL_DEFAULTS)
        _check_defaults(self.call("llama_context_default_params"), _CONTEXT_DEFAULTS)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of `_SIGNATURES`."""
        return self._calls[name](*arguments)

    def _remember(self, level: int, text: bytes, _: Any) -> None:
        if level >= _ERROR_LEVEL:
            self.log.append(text.decode("utf-8", errors="replace").strip())

    def last_words(self) -> str:
        """The last errors it logged, in one line."""
        return " | ".join(line for line in self.log[-3:] if line) or "it logged no error"


class LlamaVocabulary:
    """The tokenizer of a GGUF file, as llama.cpp reads it; no weight is loaded."""

    def __init__(self, path: Path) -> None:
        self._llama = LlamaCpp()
        self._model = _load(self._llama, path, vocab_only=True)
        self._vocabulary = self._llama.call("llama_model_get_vocab", self._model)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, control tokens recognised, nothing added."""
        data = text.encode("utf-8")
        room = (_INT * (len(data) + 8))()
        count = self._llama.call("llama_tokenize", self._vocabulary, data, len(data), room, len(room), False, True)
        return list(room[:count])

    def ends_generation(self, token_id: int) -> bool:
        """Whether llama.cpp stops an answer at this token."""
        return bool(self._llama.call("llama_vocab_is_eog", self._vocabulary, token_id))

    def __len__(self) -> int:
        return int(self._llama.call("llama_vocab_n_tokens", self._vocabulary))


class LlamaModel:
    """A whole GGUF file with one KV cache, in float32 so that figures are those of the weights.

    Args:
        path: The file. Its hash must have been checked.
        context_length: Tokens the cache holds.
        chunk_length: Tokens of one decode at most.
        n_threads: CPU threads.

    Raises:
        EngineError: llama.cpp refuses the file.
    """

    def __init__(self, path: Path, *, context_length: int, chunk_length: int, n_threads: int = 2) -> None:
        self._llama = LlamaCpp()
        model = _load(self._llama, path, vocab_only=False)
        self.vocab_size = int(self._llama.call("llama_vocab_n_tokens", self._llama.call("llama_model_get_vocab", model)))
        params = self._llama.call("llama_context_default_params")
        params.n_ctx, params.n_batch, params.n_ubatch = context_length, chunk_length, chunk_length
        params.n_threads = params.n_threads_batch = n_threads
        params.type_k, params.type_v, params.flash_attn_type = _F32, _F32, _OFF
        self._context = self._llama.call("llama_init_from_model", model, params)
        if not self._context:
            raise EngineError(f"llama.cpp cannot run {path.name}", why=self._llama.last_words(), fix="convert the checkpoint again")
        self._batch = self._llama.call("llama_batch_init", chunk_length, 0, 1)

    def reset(self) -> None:
        """Forget every token."""
        self._llama.call("llama_memory_clear", self._llama.call("llama_get_memory", self._context), True)

    def decode(self, token_ids: Sequence[int], position: int) -> np.ndarray:
        """Feed tokens that begin at `position`; returns their logits, (n_tokens, vocab_size) float32.

        Raises:
            EngineError: llama.cpp fails.
        """
        batch = self._batch
        batch.n_tokens = len(token_ids)
        for i, token_id in enumerate(token_ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token_id, position + i, 1, 1
            batch.seq_id[i][0] = 0
        if code := self._llama.call("llama_decode", self._context, batch):
            raise EngineError("llama.cpp could not decode", why=f"it returned {code}; {self._llama.last_words()}", fix="report it")
        logits = np.ctypeslib.as_array(self._llama.call("llama_get_logits", self._context), (len(token_ids), self.vocab_size))
        return logits.copy()


def _load(llama: LlamaCpp, path: Path, *, vocab_only: bool) -> Any:
    params = llama.call("llama_model_default_params")
    params.vocab_only, params.n_gpu_layers, params.check_tensors = vocab_only, 0, not vocab_only
    model = llama.call("llama_model_load_from_file", str(path).encode(), params)
    if not model:
        raise EngineError(f"llama.cpp refuses {path.name}", why=llama.last_words(), fix="convert the checkpoint again")
    return model


def _check_defaults(params: ctypes.Structure, expected: dict[str, Any]) -> None:
    wrong = [f"{name} is {getattr(params, name)}" for name, value in expected.items() if getattr(params, name) != value]
    if wrong:
        raise _unavailable(f"its structures are not those of {VERSION}: {', '.join(wrong)}", _WITHOUT)


def _unavailable(why: str, fix: str) -> BackendUnavailableError:
    return BackendUnavailableError("llama.cpp cannot be called here", why=why, fix=fix)
