"""mlx_lm: runs MLX bundles, on the GPU of Apple's chips; elsewhere on the CPU, where quantized models are slow."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
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

_LOG = logging.getLogger(__name__)
_DISTRIBUTION = "mlx-lm"
_GPU_CHUNK, _CPU_CHUNK = 512, 8  # packed weights on a CPU take about a second a token, and a cancelled prompt waits for its chunk


def _import_engine() -> Any:
    """Import mlx.core, and mlx_lm with it."""

    def load() -> Any:
        import mlx.core as mx
        import mlx_lm.utils  # noqa: F401

        return mx

    packages = {"mlx_lm": _DISTRIBUTION, "mlx": "mlx", "transformers": "transformers"}
    return import_library(load, engine="MLX", extra="mlx", packages=packages)


class MlxBackend:
    """See `toolkit.backends.base.Backend`. MLX on a CPU has no setting for threads."""

    name = "mlx"
    targets = ("mlx",)

    def probe(self) -> BackendFacts:
        mx = _import_engine()
        is_cpu = mx.default_device() == mx.Device(mx.cpu)
        detail = "this build of mlx has no GPU: quantized models are slow on it" if is_cpu else "Metal"
        version = f"{installed_version(_DISTRIBUTION)}, mlx {mx.__version__}"
        capabilities = Capabilities(clone=True, checkpoint=True, logits=True, constraints=can_constrain())
        return BackendFacts(version, ("CPU",) if is_cpu else ("GPU",), detail, capabilities)

    def open_engine(self, bundle: Bundle, *, context_length: int, threads: int) -> TokenEngine:
        check_threads(threads)
        check_context_length(context_length, most=bundle.manifest.context_length)
        mx = _import_engine()
        from mlx_lm.utils import load_model, load_tokenizer

        is_cpu = mx.default_device() == mx.Device(mx.cpu)
        if is_cpu:
            mx.disable_compile()  # there it calls a C++ compiler, which a user's machine need not have
        folder = bundle.entry_path.parent
        try:
            model, config = load_model(folder)
            text = HfText(load_tokenizer(folder, eos_token_ids=list(bundle.manifest.stop_token_ids)))
        except Exception as error:  # the library checks little: any error of Python's or MLX's
            raise refused_files(bundle, error, by="mlx_lm") from error
        if is_cpu and "quantization" in config:
            _LOG.warning("mlx has no GPU here: it reads the packed weights of %s about a token a second", bundle.name)
        return TokenEngine(
            "mlx",
            text,
            lambda: MlxSequence(mx, model, chunk=_CPU_CHUNK if is_cpu else _GPU_CHUNK),
            context_length=context_length,
            stop_ids=bundle.manifest.stop_token_ids,
            n_vocab=int(config["vocab_size"]),
            folder=folder,
        )


class MlxSequence:
    """See `toolkit.backends.token_loop.TokenModel`: mlx_lm's prompt cache, which grows with its content."""

    def __init__(self, mx: Any, model: Any, cache: Any = None, *, chunk: int) -> None:
        from mlx_lm.models.cache import make_prompt_cache

        self._mx, self._model, self.chunk = mx, model, chunk
        self._cache: Any = cache if cache is not None else make_prompt_cache(model)
        self._logits: Any = None

    def feed(self, token_ids: Sequence[int]) -> None:
        self._logits = self._model(self._mx.array([list(token_ids)]), cache=self._cache)[0, -1]
        # Only the cache: MLX is lazy, and of all chunks of a prompt but the last nobody asks for logits.
        self._mx.eval([layer.state for layer in self._cache])

    def logits(self) -> Any:
        import numpy as np

        return np.array(self._logits.astype(self._mx.float32))

    def rewind(self, n_tokens: int) -> None:
        from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache

        if not can_trim_prompt_cache(self._cache):
            raise ValueError("its sliding window has let go of earlier tokens")
        trim_prompt_cache(self._cache, self._cache[0].offset - n_tokens)

    def clone(self) -> MlxSequence:
        other = MlxSequence(self._mx, self._model, copy.deepcopy(self._cache), chunk=self.chunk)
        other._logits = self._logits
        return other

    def close(self) -> None:
        self._cache = self._logits = None


BACKEND = MlxBackend()
