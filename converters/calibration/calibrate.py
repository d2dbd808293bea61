"""Choosing codes and channel scales for a whole model, in a process of its own.

1. The texts flow through the float model: each channel set gets its scales, each matrix an estimate of what rounding it costs.
2. The head, which is the embedding table where that is tied, gets its codes; then the most sensitive matrices are promoted.
3. The texts flow again, and each matrix gets its codes from the inputs it sees now that those before it are quantized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.calibration.flow import flow, linears, second_moment
from converters.calibration.folding import HEAD_READER, Fold, choose_scales, folds
from converters.calibration.found import KIND, Found
from converters.calibration.gptq import Hessian, choose_codes
from converters.calibration.matrix_rule import Format, MatrixRule, int8_rows
from converters.calibration.sensitivity import estimated_kl, output_fisher, promoted
from converters.spec import ModelSpec
from converters.stored_blocks import StoredBlocks

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any

SAMPLE_TOKENS = 512
SAMPLE_ROWS = 256
EMBEDDING = "model.embed_tokens.weight"


def calibrate(
    hf_dir: str,
    spec: dict[str, Any],
    rules: dict[str, dict[str, Any]],
    windows: list[list[int]],
    format_module: str,
    budget_bits: float,
    out: str,
) -> dict[str, Any]:
    """Calibrate a checkpoint and write `calibrated.json` and `calibrated.safetensors` into `out`. Meant for a child process.

    Args:
        hf_dir: The checkpoint in float32, as transformers loads it.
        spec: `ModelSpec.as_dict`.
        rules: Hugging Face name -> fields of its `MatrixRule`; the head under its table's name where it is tied.
        windows: Token ids of the calibration texts, all of one length.
        format_module: Module with `store`, see `Format`.
        budget_bits: Bits that promotions may spend over the whole model.
        out: Existing folder.

    Returns:
        {"n_tokens": calibration tokens, "n_codes": matrices whose codes were chosen, "promoted": names}.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(hf_dir, dtype=torch.float32, attn_implementation="eager").eval().requires_grad_(False)
    run = Calibration(model, ModelSpec.from_dict(spec), {name: MatrixRule(**rule) for name, rule in rules.items()}, Format(format_module))
    found = run.run(torch.tensor(windows), budget_bits)
    found.write(Path(out))
    return {"n_tokens": sum(map(len, windows)), "n_codes": len(found.codes), "promoted": list(found.promoted)}


class Calibration:
    """One model being calibrated. Its weights are replaced, as they will answer, once their codes are chosen."""

    def __init__(self, model: Any, spec: ModelSpec, rules: Mapping[str, MatrixRule], store: Format) -> None:
        self.model, self.rules, self.store = model, dict(rules), store
        self.head = EMBEDDING if spec.tie_embeddings else HEAD_READER
        self.found = Found()
        self._channels: dict[str, Tensor] = {}  # matrix -> what its columns are multiplied by
        self._rows: dict[str, Tensor] = {}  # matrix -> what its rows are divided by
        self._modules = linears(model) | {HEAD_READER: model.lm_head, EMBEDDING: model.get_input_embeddings()}
        named = [Fold(each.made_by, tuple(self.head if name == HEAD_READER else name for name in each.readers)) for each in folds(spec)]
        self._folds = [fold for fold in named if self._may_scale(fold)]
        self._seen: tuple[Tensor, Hessian] | None = None

    def run(self, windows: Tensor, budget_bits: float) -> Found:
        """All three steps; windows is (n_windows, window) token ids."""
        hidden = flow(self.model, windows, lambda name, module, x: self._choose_scales(name, x))
        self._choose_scales(self.head, hidden)
        if any(rule.promotion_bits for rule in self.rules.values()):
            fisher = output_fisher(self.model, windows)
            flow(self.model, windows, lambda name, module, x: self._estimate(name, x, fisher))
            costs = {name: self.rules[name].promotion_bits for name in self.found.estimates}
            self.found.promoted = promoted(self.found.estimates, costs, budget_bits)
            self.rules |= {name: replace(self.rules[name], method="int8") for name in self.found.promoted}
        self.found.n_tokens = windows.numel()
        if not any(rule.method == "gptq" for rule in self.rules.values()):
            return self.found  # int8 is rounded from the weights alone, wherever that happens
        self._quantize(self.head, hidden)
        if self.head != EMBEDDING:
            self._quantize(EMBEDDING, None)
        flow(self.model, windows, lambda name, module, x: self._quantize(name, x))
        return self.found

    def _may_scale(self, fold: Fold) -> bool:
        """Codes that are kept fix the columns, and the rows that make channels; a bias would have to follow its rows."""
        names = fold.readers if fold.is_norm else (*fold.readers, fold.made_by)
        has_bias = not fold.is_norm and self._modules[fold.made_by].bias is not None
        return not has_bias and all(self.rules[name].method != "fixed" for name in names)

    def _choose_scales(self, name: str, x: Tensor) -> None:
        """Choose the scales of the channels a matrix reads, once for all that read them."""
        fold = next((fold for fold in self._folds if fold.readers[0] == name), None)
        if fold is None:
            return
        sample = x[:: max(1, len(x) // SAMPLE_TOKENS)]
        readers = []
        for reader in fold.readers:
            weight = self._modules[reader].weight
            readers.append((weight[:: max(1, len(weight) // SAMPLE_ROWS)], partial(self.store.rounded, self.rules[reader])))
        scales = choose_scales(sample, readers)
        if bool((scales != 1).any()):
            self._channels |= dict.fromkeys(fold.readers, scales)
            self._rows |= {} if fold.is_norm else {fold.made_by: scales}
            self.found.scales[fold.made_by], self.found.readers[fold.made_by] = scales.numpy(), fold.readers

    def _estimate(self, name: str, x: Tensor, fisher: Mapping[str, Tensor]) -> None:
        """Estimate what a matrix costs as its rule rounds it."""
        rule = self.rules[name]
        if not rule.promotion_bits:
            return
        moment = second_moment(x)
        columns = self._columns(name)
        error = self._restored(name, self.store.rounded(rule, self._scaled(name), moment.diagonal() / columns.square() + 1e-30))
        self.found.estimates[name] = estimated_kl(fisher[name], error - self._modules[name].weight, moment)

    def _quantize(self, name: str, x: Tensor | None) -> None:
        """Choose a matrix's codes and have the model answer with them from now on. Without inputs all columns weigh the same."""
        rule, module = self.rules[name], self._modules[name]
        if rule.method == "fixed":
            return
        scaled = self._scaled(name)
        if rule.method == "int8":
            answer = int8_rows(scaled)
        else:
            hessian = self._hessian(x, self._columns(name))
            grid = self.store.grid(rule, scaled, hessian.diagonal)
            codes = choose_codes(scaled, hessian, grid)
            self.found.codes[name] = StoredBlocks(
                KIND, rule.bits, rule.group_size, codes.numpy(), grid.scales.contiguous().numpy(), grid.offsets.contiguous().numpy()
            )
            answer = grid.value(codes.float())
            answer[: rule.int8_rows] = int8_rows(scaled[: rule.int8_rows])
        module.weight.data = self._restored(name, answer)

    def _hessian(self, x: Tensor | None, columns: Tensor) -> Hessian:
        """The Hessian of scaled inputs; worked out once for matrices that read the same."""
        import torch

        if x is None:
            return Hessian.of(torch.eye(len(columns)))
        # The inputs are kept beside their Hessian: freed, their place in memory could hold the next ones.
        if self._seen is None or self._seen[0].data_ptr() != x.data_ptr():
            self._seen = (x, Hessian.of(second_moment(x) / torch.outer(columns, columns)))
        return self._seen[1]

    def _columns(self, name: str) -> Tensor:
        """(in_features,) what the columns of a matrix are multiplied by."""
        import torch

        columns = self._channels.get(name)
        return torch.ones(self._modules[name].weight.shape[1]) if columns is None else columns

    def _scaled(self, name: str) -> Tensor:
        """The matrix that is stored: columns multiplied by what it reads was divided by, rows divided as its own channels are."""
        weight: Tensor = self._modules[name].weight.data * self._columns(name)
        rows = self._rows.get(name)
        return weight if rows is None else weight / rows[:, None]

    def _restored(self, name: str, scaled: Tensor) -> Tensor:
        """The inverse: the matrix as it acts in the model whose channels were not scaled."""
        rows = self._rows.get(name)
        return (scaled if rows is None else scaled * rows[:, None]) / self._columns(name)
