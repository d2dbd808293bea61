"""An MLX bundle opened by mlx_lm itself, to compare its logits with the checkpoint's.

On a GPU it runs as it is. MLX's CPU kernels are no measure of the file: quantized matmul sums in 16 bits (on a layer 576 wide the
largest error was 17 to 25 times that of a float32 sum rounded to the same type), and its packages for Linux come with a
reference BLAS, too slow for 2,048 tokens. So on a CPU each matmul with a weight, and only that, is done by PyTorch in float32
on the weights MLX itself dequantizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.errors import BackendUnavailableError, FormatError

CHUNK = 128


class MlxModel:
    """A folder with config.json and model*.safetensors, as `mlx_lm.utils.load_model` opens it.

    Args:
        folder: Its hashes must have been checked, if it comes from elsewhere.
        is_native: Compute everything in MLX's own kernels; None decides by the device.

    Raises:
        BackendUnavailableError: mlx or mlx_lm is not installed.
        FormatError: mlx_lm refuses the folder.
    """

    def __init__(self, folder: Path, *, is_native: bool | None = None) -> None:
        self._mx, load_model = _load_libraries()
        try:
            self._model, self.config = load_model(folder)
        except (ValueError, KeyError, TypeError, OSError, RuntimeError) as error:
            raise FormatError(
                f"mlx_lm cannot open {folder.name}",
                why=f"{type(error).__name__}: {error}"[:300],
                fix="convert the checkpoint again with this version",
            ) from error
        if not (is_native if is_native is not None else _has_gpu()):
            self._mx.disable_compile()  # on a CPU it would call a C++ compiler, for nothing
            _replace_matmuls(self._model)

    def score(self, token_ids: Sequence[int]) -> Iterator[np.ndarray]:
        """Logits after each token of one window, from an empty cache, in chunks of at most `CHUNK` positions.

        Yields:
            (n_positions, vocab_size) float32; the chunks together have len(token_ids) rows.
        """
        cache = self._new_cache()
        for start in range(0, len(token_ids), CHUNK):
            yield self._step(token_ids[start : start + CHUNK], cache)

    def count_greedy_equal(self, prompt_ids: Sequence[int], expected_ids: Sequence[int]) -> int:
        """Tokens of greedy generation, one step each, that equal `expected_ids` before the first that does not."""
        cache = self._new_cache()
        logits = self._step(prompt_ids, cache)
        for n_equal, expected_id in enumerate(expected_ids):
            if int(logits[-1].argmax()) != expected_id:
                return n_equal
            logits = self._step([expected_id], cache)
        return len(expected_ids)

    def _new_cache(self) -> Any:
        from mlx_lm.models.cache import make_prompt_cache

        return make_prompt_cache(self._model)

    def _step(self, token_ids: Sequence[int], cache: Any) -> np.ndarray:
        logits = self._model(self._mx.array([list(token_ids)]), cache=cache)[0]
        return np.array(logits.astype(self._mx.float32))


def _load_libraries() -> tuple[Any, Callable[[Path], tuple[Any, dict[str, Any]]]]:
    require_mlx("an MLX bundle cannot be run here")
    import mlx.core
    from mlx_lm.utils import load_model

    return mlx.core, load_model


def runtime_name() -> str:
    """What an MLX bundle is measured with on this machine, for the manifest. Imports MLX."""
    from importlib.metadata import version

    return f"mlx_lm {version('mlx-lm')}, {'its own kernels' if _has_gpu() else 'matmuls by PyTorch in float32'}"


def _has_gpu() -> bool:
    """Whether MLX computes on a GPU here, whose kernels are what a bundle is measured with."""
    import mlx.core as mx

    return bool(mx.default_device() != mx.Device(mx.cpu))


def require_mlx(what: str, instead: str = "") -> None:
    """Refuse what needs MLX where it is not installed; imports nothing.

    Raises:
        BackendUnavailableError: With the pip line, and what would do instead.
    """
    from importlib.util import find_spec

    missing = [name for name in ("mlx", "mlx_lm") if find_spec(name) is None]
    if missing:
        why = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        raise BackendUnavailableError(what, why=why, fix=f"pip install 'ondevice-toolkit[mlx]'{instead}")


def _replace_matmuls(model: Any) -> None:
    """Put a matmul of PyTorch's (which mlx_lm has imported anyway) in the place of every linear layer and every table."""
    import mlx.nn as nn
    import torch
    from mlx.utils import tree_flatten, tree_unflatten

    # Layers are small, and threads wait for each other: on a busy machine two reached a fifth of one's speed.
    torch.set_num_threads(1)
    from converters.targets.mlx_gemmas import MIXING

    replacement, kinds = _matmul_class(), (nn.Linear, nn.QuantizedLinear, nn.Embedding, nn.QuantizedEmbedding)
    leaves = tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module)
    chosen = [(path, module) for path, module in leaves if isinstance(module, kinds) and not path.endswith(MIXING)]
    model.update_modules(tree_unflatten([(path, replacement(module)) for path, module in chosen]))


def _matmul_class() -> Any:
    """The replacement module; a class of mlx's, so it can only be made once mlx is imported."""
    import mlx.core as mx
    import mlx.nn as nn
    import torch

    class FloatMatmul(nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        """A linear layer or table whose product is summed in float32 and rounded to the type MLX's own would have."""

        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner
            self._weight: Any = None

        def __call__(self, x: Any) -> Any:
            if isinstance(self.inner, nn.Embedding | nn.QuantizedEmbedding):
                return self.inner(x)
            y = self.as_linear(x)
            return y + self.inner["bias"] if "bias" in self.inner else y

        def as_linear(self, x: Any) -> Any:
            if self._weight is None:
                self._weight = torch.from_numpy(np.array(_float32_weight(self.inner)))
            y = torch.nn.functional.linear(torch.from_numpy(np.array(x.astype(mx.float32))), self._weight)
            dtype = mx.result_type(x, self.inner["scales"] if "scales" in self.inner else self.inner["weight"])
            return mx.array(y.numpy()).astype(dtype)

    return FloatMatmul


def _float32_weight(module: Any) -> Any:
    import mlx.core as mx

    if "scales" not in module:
        return module["weight"].astype(mx.float32)
    scales, biases = module["scales"].astype(mx.float32), module["biases"].astype(mx.float32)
    form = {"group_size": module.group_size, "bits": module.bits, "mode": module.mode}
    return mx.dequantize(module["weight"], scales, biases, **form)
