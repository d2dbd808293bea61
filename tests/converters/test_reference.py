"""The checkpoint's own answers: what is stored must be what transformers says, block by block."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.reference import LOGITS_NAME, META_NAME, N_GREEDY_TOKENS, compute_reference, open_reference
from tests.converters.tiny_checkpoints import VOCAB, save_hf, tiny_model

WINDOWS = [[(5 * i + 1) % VOCAB for i in range(140)], [(7 * i + 2) % VOCAB for i in range(30)]]


@pytest.fixture(scope="module", params=["llama-tied", "gemma2"])
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """(model, folder of its reference); gemma2 caps its final logits."""
    folder = tmp_path_factory.mktemp(request.param)
    capped = {"final_logit_softcapping": 3.0} if request.param == "gemma2" else {}
    model = tiny_model(request.param, max_position_embeddings=512, **capped)
    answer = compute_reference(str(save_hf(model, folder / "hf")), str(folder), WINDOWS, WINDOWS[1][:8])
    assert answer == {"vocab_size": VOCAB}
    return model, folder


def test_stored_logits_equal_one_pass_of_transformers(asked: tuple[Any, Path]) -> None:
    import torch

    model, folder = asked
    reference = open_reference(folder)
    assert reference is not None and reference.windows == tuple(map(tuple, WINDOWS))
    for index, window in enumerate(WINDOWS):
        with torch.inference_mode():
            wanted = model(torch.tensor([window])).logits[0].numpy()
        np.testing.assert_allclose(reference.rows(index, 0, len(window)), wanted, atol=1e-5)
        np.testing.assert_allclose(reference.rows(index, 7, 9), wanted[7:16], atol=1e-5)
        assert np.abs(reference.rows(index, 8, 9) - wanted[7:16]).max() > 0.01


def test_greedy_tokens_are_those_of_the_largest_logit(asked: tuple[Any, Path]) -> None:
    import torch

    model, folder = asked
    reference = open_reference(folder)
    assert reference is not None and len(reference.greedy_ids) == N_GREEDY_TOKENS
    tokens = list(reference.prompt_ids)
    for chosen in reference.greedy_ids:
        with torch.inference_mode():
            assert int(model(torch.tensor([tokens])).logits[0, -1].argmax()) == chosen
        tokens.append(chosen)


@pytest.mark.parametrize("damage", ["short logits", "no meta", "half meta", "meta of another shape"])
def test_a_reference_that_is_not_whole_counts_as_none(asked: tuple[Any, Path], tmp_path: Path, damage: str) -> None:
    _, folder = asked
    meta, logits = (folder / META_NAME).read_text(), (folder / LOGITS_NAME).read_bytes()
    data = json.loads(meta)
    changed = {"half meta": meta[:40], "meta of another shape": json.dumps(data | {"vocab_size": VOCAB + 1})}
    (tmp_path / LOGITS_NAME).write_bytes(logits[:-4] if damage == "short logits" else logits)
    if damage != "no meta":
        (tmp_path / META_NAME).write_text(changed.get(damage, meta))
    assert open_reference(tmp_path) is None
    (tmp_path / LOGITS_NAME).write_bytes(logits)
    (tmp_path / META_NAME).write_text(meta)
    assert open_reference(tmp_path) is not None
