"""A whole tiny model calibrated: what is found must leave the model as it was where nothing is rounded, and better where it is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from converters.calibration.calibrate import EMBEDDING, Calibration, calibrate
from converters.calibration.flow import flow, second_moment
from converters.calibration.folding import as_int8, choose_scales, folds
from converters.calibration.found import Found
from converters.calibration.matrix_rule import Format, MatrixRule, int8_rows
from converters.calibration.sensitivity import estimated_kl, output_fisher, promoted
from converters.read import read_checkpoint
from tests.converters.tiny_checkpoints import VOCAB, save_hf, tiny_model

FORMAT = "converters.targets.litert_grid"
SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "max_position_embeddings": 512}
WINDOWS = [[(7 * i + 3 * j) % VOCAB for i in range(64)] for j in range(4)]
GPTQ = MatrixRule("gptq", is_symmetric=False)
TABLE = MatrixRule("gptq", int8_rows=32)


def rules_of(model: Any, **changes: Any) -> dict[str, MatrixRule]:
    names = [f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and name != "lm_head"]
    rules = {name: MatrixRule(**{**asdict(GPTQ), **changes}) for name in names}
    rules |= {EMBEDDING: TABLE}
    return rules if model.config.tie_word_embeddings else rules | {"lm_head.weight": TABLE}


def calibration_of(model: Any, tmp_path: Path, rules: dict[str, MatrixRule] | None = None) -> Calibration:
    spec = read_checkpoint(str(save_hf(model, tmp_path / "hf"))).spec
    return Calibration(model.requires_grad_(False), spec, rules or rules_of(model), Format(FORMAT))


def answers(model: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor(WINDOWS)).logits
    return logits


@pytest.mark.parametrize("family", ["llama-tied", "llama", "gemma3", "llama-bias", "qwen3"])
def test_codes_and_scales_are_those_the_calibrated_model_answers_with(family: str, tmp_path: Path) -> None:
    """The plan's own arithmetic: matrices put together from codes and scales, channels divided where they are made."""
    model, plain = (tiny_model(family, **SIZES) for _ in range(2))
    run = calibration_of(model, tmp_path)
    found = run.run(torch.tensor(WINDOWS), 0)
    assert found.scales, "no channel set was scaled, so nothing was tested"
    state = plain.state_dict()
    offset = 1.0 if family.startswith("gemma") else 0.0
    for name, blocks in found.codes.items():
        matrix = torch.from_numpy(blocks.dequantized())
        if name in (EMBEDDING, "lm_head.weight"):
            matrix[:32] = int8_rows((state[name] * columns_of(found, name))[:32])
        state[name].copy_(matrix)
    for made_by, scales in found.scales.items():
        if state[made_by].dim() == 1:
            state[made_by].copy_((state[made_by] + offset) / torch.from_numpy(scales) - offset)
    if plain.config.tie_word_embeddings:
        plain.lm_head.weight = torch.nn.Parameter(state[EMBEDDING].clone(), requires_grad=False)
        state[EMBEDDING].div_(columns_of(found, EMBEDDING))
    torch.testing.assert_close(answers(plain), answers(model), rtol=1e-3, atol=1e-3)


def columns_of(found: Found, name: str) -> torch.Tensor:
    made_by = next((made_by for made_by, readers in found.readers.items() if name in readers), None)
    return torch.ones(64) if made_by is None else torch.from_numpy(found.scales[made_by])


def test_the_calibrated_model_is_nearer_than_one_rounded_to_nearest(tmp_path: Path) -> None:
    model, rounded = (tiny_model("llama-tied", **SIZES) for _ in range(2))
    wanted = answers(model)
    rules, store = rules_of(model), Format(FORMAT)
    for name, parameter in rounded.named_parameters():
        if name in rules:
            parameter.data = store.rounded(rules[name], parameter.data, torch.ones(parameter.shape[1]))
    calibration_of(model, tmp_path, rules).run(torch.tensor(WINDOWS), 0)
    assert (answers(model) - wanted).square().mean() < 0.8 * (answers(rounded) - wanted).square().mean()


def test_kept_matrices_are_not_touched_and_neither_are_their_channels(tmp_path: Path) -> None:
    model = tiny_model("llama-tied", **SIZES)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    found = calibration_of(model, tmp_path, rules_of(model, method="fixed")).run(torch.tensor(WINDOWS), 0)
    assert set(found.codes) == {EMBEDDING} and set(found.scales) == {"model.norm.weight"}
    changed = [name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])]
    assert changed == [EMBEDDING]


def test_the_sensitive_are_promoted_within_the_budget(tmp_path: Path) -> None:
    model = tiny_model("llama-tied", **SIZES)
    found = calibration_of(model, tmp_path, rules_of(model, promotion_bits=100)).run(torch.tensor(WINDOWS), 350)
    assert len(found.promoted) == 3 and len(found.estimates) == 28
    least = min(found.estimates[name] for name in found.promoted)
    assert all(found.estimates[name] <= least for name in found.estimates if name not in found.promoted)
    assert not set(found.promoted) & set(found.codes), "a promoted matrix is int8, it has no 4-bit codes"


def test_promotion_spends_each_bit_where_it_saves_most() -> None:
    estimates, costs = {"a": 1.0, "b": 0.9, "c": 0.5}, {"a": 100, "b": 10, "c": 10}
    assert promoted(estimates, costs, 20) == ("b", "c")
    assert promoted(estimates, costs, 115) == ("b", "c"), "a saves more, but least a bit; it does not fit in what they leave"
    assert promoted(estimates, costs, 120) == ("b", "c", "a")
    assert promoted(estimates, costs, 9) == ()


def test_estimated_kl_is_near_the_measured_one() -> None:
    """A small error in one linear: the estimate from gradients beside the KL of the answers themselves."""
    model = tiny_model("llama-tied", **SIZES).requires_grad_(False)
    windows = torch.tensor([[(7 * i + 3 * j) % VOCAB for i in range(64)] for j in range(24)])
    fisher = output_fisher(model, windows)
    name = "model.layers.3.mlp.down_proj.weight"
    moments: dict[str, torch.Tensor] = {}
    flow(model, windows, lambda each, module, x: moments.update({each: second_moment(x)}))
    parameter = model.model.layers[3].mlp.down_proj.weight
    error = 0.02 * parameter.std() * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    wanted = torch.log_softmax(model(windows).logits.double(), dim=-1)
    parameter.data += error
    got = torch.log_softmax(model(windows).logits.double(), dim=-1)
    measured = float((wanted.exp() * (wanted - got)).sum(dim=-1).mean())
    assert 0.5 * measured < estimated_kl(fisher[name], error, moments[name]) < 2 * measured


def test_a_loud_channel_is_made_quieter_and_helps() -> None:
    generator = torch.Generator().manual_seed(20261130)
    x = torch.randn(300, 64, generator=generator)
    x[:, 9] *= 100
    weight = torch.randn(32, 64, generator=generator)
    exact = x @ weight.T
    scales = choose_scales(x, [(weight, lambda each, importance: int8_rows(each))])
    assert scales[9] > 5 * scales.median()
    plain = as_int8(x) @ int8_rows(weight).T
    scaled = as_int8(x / scales) @ int8_rows(weight * scales).T
    assert (scaled - exact).square().mean() < 0.2 * (plain - exact).square().mean()


def test_channels_that_need_nothing_are_left_alone() -> None:
    x = torch.where(torch.rand(300, 64, generator=torch.Generator().manual_seed(1)) < 0.5, 1.0, -1.0)
    weight = torch.eye(64)
    assert (choose_scales(x, [(weight, lambda each, importance: each)]) == 1).all()


def test_a_family_with_post_norms_folds_into_the_norm_before_the_mlp(tmp_path: Path) -> None:
    gemma = read_checkpoint(str(save_hf(tiny_model("gemma3"), tmp_path / "gemma"))).spec
    llama = read_checkpoint(str(save_hf(tiny_model("llama"), tmp_path / "llama"))).spec
    assert folds(gemma)[1].made_by == "model.layers.0.pre_feedforward_layernorm.weight"
    assert folds(llama)[1].made_by == "model.layers.0.post_attention_layernorm.weight"


def test_what_was_found_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    model = tiny_model("llama-tied", **SIZES)
    rules = {name: asdict(rule) for name, rule in rules_of(model, promotion_bits=100).items()}
    spec = read_checkpoint(str(save_hf(model, tmp_path / "hf"))).spec
    out = tmp_path / "out"
    out.mkdir()
    done = calibrate(str(tmp_path / "hf"), spec.as_dict(), rules, WINDOWS, FORMAT, 250, str(out))
    found = Found.read(out)
    assert done == {"n_tokens": 256, "n_codes": 27, "promoted": list(found.promoted)} and found.n_tokens == 256
    blocks = found.codes[EMBEDDING]
    assert (blocks.bits, blocks.group_size, blocks.codes.shape) == (4, 32, (VOCAB, 64))
    assert np.isfinite(blocks.dequantized()).all() and all((scales > 0).all() for scales in found.scales.values())
