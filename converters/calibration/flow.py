"""The calibration texts flowing through a model: each matrix is looked at, or replaced, when they reach it.

One forward pass over all texts at once; by the time a matrix is reached, those before it are quantized, so its Hessian is
that of the inputs it is going to see. Nothing here knows a model family: matrices are found by their module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any

# name of the matrix, its module, its inputs (n_tokens, in_features)
Visit = Callable[[str, Any, Tensor], None]
HEAD = "lm_head"


def linears(model: Any) -> dict[str, Any]:
    """Hugging Face tensor name -> module of every linear but the head."""
    import torch

    found = {f"{name}.weight": module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    return {name: module for name, module in found.items() if name != f"{HEAD}.weight"}


@contextmanager
def visited(model: Any, visit: Visit) -> Iterator[None]:
    """While open, `visit` is called for each linear just before it multiplies; it may change the module's weight."""
    import torch

    def hook_for(name: str) -> Callable[[Any, tuple[Any, ...]], None]:
        def hook(module: Any, inputs: tuple[Any, ...]) -> None:
            with torch.no_grad():
                x = inputs[0].detach()
                visit(name, module, x.reshape(-1, x.shape[-1]))

        return hook

    handles = [module.register_forward_pre_hook(hook_for(name)) for name, module in linears(model).items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def flow(model: Any, windows: Tensor, visit: Visit) -> Tensor:
    """Send (n_windows, window) token ids through a model's layers; returns what the head reads, (n_tokens, hidden_size)."""
    import torch

    with torch.no_grad(), visited(model, visit):
        hidden = model.model(input_ids=windows, use_cache=False).last_hidden_state
    flat: Tensor = hidden.reshape(-1, hidden.shape[-1])
    return flat


def second_moment(x: Tensor) -> Tensor:
    """Mean of x xT over tokens, (in_features, in_features)."""
    moment: Tensor = x.T @ x / len(x)
    return moment
