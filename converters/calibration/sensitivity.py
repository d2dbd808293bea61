"""How much the answers suffer from a matrix's error: a second-order estimate of KL, one backward pass for all matrices.

For small output errors e of a linear, KL is about 1/2 sum_o E[g_o^2] E[e_o^2], with g the gradient of the log-probability of a
token drawn from the model itself (the diagonal of the Fisher information), e the error of its outputs on the calibration
texts. Source: Dong et al. 2020 (HAWQ) for the idea; the diagonal in outputs is ours, and is enough to rank matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from converters.calibration.flow import linears

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any

SEED = 20261130
ROWS_AT_ONCE = 64


def output_fisher(model: Any, windows: Tensor) -> dict[str, Tensor]:
    """Matrix -> (out_features,) mean over tokens of the squared gradient of a drawn token's log-probability.

    One window at a time: memory is one window's activations.
    """
    import torch

    generator = torch.Generator().manual_seed(SEED)
    found = {name: torch.zeros(module.out_features) for name, module in linears(model).items()}
    handles = [module.register_forward_hook(_catch(found[name])) for name, module in linears(model).items()]
    embed = model.get_input_embeddings()
    try:
        for window in windows:
            with torch.enable_grad():
                embedded = embed(window[None]).detach().requires_grad_()
                hidden = model.model(inputs_embeds=embedded, use_cache=False).last_hidden_state
                hidden.backward(_drawn_gradient(model, hidden.detach()[0], generator)[None])
    finally:
        for handle in handles:
            handle.remove()
    n_tokens = windows.numel()
    return {name: total / n_tokens for name, total in found.items()}


def _catch(total: Tensor) -> Any:
    def add(gradient: Tensor) -> None:
        total.add_(gradient.reshape(-1, gradient.shape[-1]).square().sum(dim=0))

    def hook(module: Any, inputs: Any, output: Any) -> None:
        output.register_hook(add)

    return hook


def _drawn_gradient(model: Any, hidden: Any, generator: Any) -> Tensor:
    """Gradient of log p(token) with respect to what the head reads, (n_tokens, hidden_size); each token drawn from the model."""
    import torch

    softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    weight = model.lm_head.weight.detach()
    parts = []
    for rows in hidden.split(ROWS_AT_ONCE):
        logits = rows @ weight.T
        slope: Any = 1.0
        if softcap is not None:
            squashed = torch.tanh(logits / softcap)
            logits, slope = squashed * softcap, 1 - squashed.square()
        gradient = -torch.softmax(logits, dim=-1)
        drawn = torch.multinomial(-gradient, 1, generator=generator)
        gradient.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=gradient.dtype))
        parts.append((gradient * slope) @ weight)
    return torch.cat(parts)


def estimated_kl(fisher: Tensor, error: Tensor, moment: Tensor) -> float:
    """Nats a token that a matrix's error costs, to second order.

    Args:
        fisher: (out_features,) from `output_fisher`.
        error: (out_features, in_features) stored minus exact weights.
        moment: (in_features, in_features) second moment of its inputs.
    """
    return 0.5 * float((fisher * ((error @ moment) * error).sum(dim=1)).sum())


def promoted(estimates: Mapping[str, float], costs: Mapping[str, int], budget_bits: float) -> tuple[str, ...]:
    """Which matrices to store better: the most KL saved for each further bit first, as many as the budget holds.

    Args:
        estimates: Matrix -> nats a token it costs as it is.
        costs: Matrix -> bits it takes more when promoted.
        budget_bits: Bits that may be spent.
    """
    chosen, left = [], budget_bits
    for name in sorted(estimates, key=lambda each: estimates[each] / costs[each], reverse=True):
        if costs[name] <= left:
            chosen.append(name)
            left -= costs[name]
    return tuple(chosen)
