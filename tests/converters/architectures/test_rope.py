from typing import Any

import numpy as np
import pytest

from converters.architectures.fields import Fields
from converters.architectures.rope import llama3_factors, rope_from_config, rope_from_gguf
from converters.spec import RopeSpec
from tests.converters.tiny_checkpoints import LLAMA3
from toolkit.errors import FormatError, UnsupportedModelError

LLAMA_3_2 = LLAMA3 | {"factor": 32.0}


class OneTensor:
    """A GGUF view that holds rope_freqs.weight, or nothing."""

    name = "tiny.gguf"

    def __init__(self, factors: np.ndarray | None, **metadata: Any) -> None:
        self.factors, self.metadata = factors, {f"llama.{key.replace('__', '.')}": value for key, value in metadata.items()}

    def shape(self, tensor_name: str) -> tuple[int, ...] | None:
        return None if self.factors is None else self.factors.shape

    def load(self, tensor_name: str) -> np.ndarray:
        assert self.factors is not None
        return self.factors


def read(view: OneTensor, head_dim: int = 64) -> RopeSpec:
    return rope_from_gguf(view, Fields(view.metadata, "tiny.gguf", "llama."), head_dim)


def test_llama3_factors_are_those_of_transformers() -> None:
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(hidden_size=2048, num_attention_heads=32, rope_parameters={"rope_theta": 5e5, **LLAMA_3_2})
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / 5e5 ** (np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(plain / llama3_factors(5e5, 64, LLAMA_3_2), scaled.numpy(), rtol=1e-5)


def test_llama3_scaling_is_recovered_from_the_tensor_a_gguf_holds() -> None:
    factors = llama3_factors(5e5, 64, LLAMA_3_2).astype(np.float32)
    assert read(OneTensor(factors, rope__freq_base=5e5)) == RopeSpec(5e5, LLAMA_3_2)


def test_factors_of_another_formula_are_refused_rather_than_approximated() -> None:
    factors = llama3_factors(5e5, 64, LLAMA_3_2).astype(np.float32)
    factors[10:14] *= 1.2
    with pytest.raises(UnsupportedModelError, match="not Llama 3's scaling"):
        read(OneTensor(factors, rope__freq_base=5e5))


def test_factors_of_one_mean_plain_rope() -> None:
    assert read(OneTensor(np.ones(32, np.float32))) == RopeSpec(10000.0)


@pytest.mark.parametrize("factors", [np.ones(7, np.float32), np.zeros(32, np.float32)])
def test_factors_that_cannot_be_true_are_refused(factors: np.ndarray) -> None:
    with pytest.raises(UnsupportedModelError):
        read(OneTensor(factors))


def test_linear_scaling_of_a_gguf_is_read_in_both_spellings() -> None:
    want = RopeSpec(10000.0, {"rope_type": "linear", "factor": 4.0})
    assert read(OneTensor(None, rope__scaling__type="linear", rope__scaling__factor=4.0)) == want
    assert read(OneTensor(None, rope__scale_linear=4.0)) == want
    assert read(OneTensor(None, rope__scaling__type="none")) == RopeSpec(10000.0)


@pytest.mark.parametrize(("kind", "error"), [("yarn", UnsupportedModelError), ("longrope", UnsupportedModelError)])
def test_scaling_that_llama_cpp_computes_its_own_way_is_refused_by_name(kind: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=kind):
        read(OneTensor(None, rope__scaling__type=kind))


def test_partly_rotated_heads_are_refused() -> None:
    with pytest.raises(FormatError, match="rope.dimension_count must be head_dim 64"):
        read(OneTensor(None, rope__dimension_count=32))


CONFIGS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "dynamic": ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, UnsupportedModelError, "dynamic"),
    "llama3 without its factor": ({"rope_scaling": {"rope_type": "llama3"}}, FormatError, "factor is missing"),
    "text for a base": ({"rope_theta": "large"}, FormatError, "rope_theta must be a number"),
    "a base of zero": ({"rope_theta": 0}, FormatError, "above zero"),
    "infinity": ({"rope_theta": float("inf")}, FormatError, "finite"),
    "a list of parameters": ({"rope_parameters": [1]}, FormatError, "must be an object"),
    "partial": ({"rope_parameters": {"partial_rotary_factor": 0.5}}, UnsupportedModelError, "part of each head"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_wrong_or_unknown_parameters_are_refused(case: str) -> None:
    config, error, text = CONFIGS[case]
    with pytest.raises(error, match=text):
        rope_from_config(Fields(config, "config.json"), ("full",), {"full": 10000.0})


def test_yarn_of_a_config_passes_through_with_all_its_numbers() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    rope = rope_from_config(Fields({"rope_theta": 1e6, "rope_scaling": scaling}, "config.json"), ("full",), {"full": 1e4})
    assert rope == {"full": RopeSpec(1e6, scaling)}
