"""Wrong configs: whatever is missing, mistyped or out of range is named, and nothing else happens."""

from typing import Any

import pytest

from converters.architectures import family_of
from converters.architectures.fields import PLAUSIBLE, Fields
from tests.converters.tiny_checkpoints import LLAMA3, SHAPE
from toolkit.errors import FormatError, UnsupportedModelError

GOOD = SHAPE | {"rms_norm_eps": 1e-6}
REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
MODEL_TYPES = ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")


def read(model_type: str, **changes: Any) -> None:
    config = GOOD | {"model_type": model_type} | changes
    family_of(model_type).spec_from_config({key: value for key, value in config.items() if value != "REMOVED"})


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_good_config_is_read(model_type: str) -> None:
    read(model_type)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named(model_type: str, key: str) -> None:
    with pytest.raises(FormatError, match=rf"why: {key} is missing\n  fix: "):
        read(model_type, **{key: "REMOVED"})


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"hidden_size": "576"}, "hidden_size must be a whole number, found '576'"),
    "a fraction": ({"hidden_size": 576.5}, "hidden_size must be a whole number"),
    "true": ({"num_hidden_layers": True}, "num_hidden_layers must be a whole number, found True"),
    "zero layers": ({"num_hidden_layers": 0}, "between 1 and 1024"),
    "a million layers": ({"num_hidden_layers": 10**6}, "between 1 and 1024"),
    "a huge width": ({"hidden_size": 2**60}, "between 1 and 1048576"),
    "a huge vocabulary": ({"vocab_size": 2**40}, "between 1 and 4194304"),
    "kv heads": ({"num_key_value_heads": 3}, "num_key_value_heads 3 must divide num_attention_heads 4"),
    "an odd head": ({"head_dim": 13}, "must be even"),
    "epsilon": ({"rms_norm_eps": -1.0}, "above zero"),
    "stop token": ({"eos_token_id": 9999}, r"token ids in 0..319, found 9999"),
    "stop tokens": ({"eos_token_id": [1, "2"]}, "token ids in"),
    "bos token": ({"bos_token_id": -1}, "between 0 and 319"),
    "tying": ({"tie_word_embeddings": "yes"}, "true or false"),
    "a long value": ({"hidden_size": "9" * 10_000}, r"\.\.\."),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_value_is_named_with_what_is_allowed(case: str) -> None:
    changes, text = WRONG[case]
    with pytest.raises(FormatError, match=text) as error:
        read("llama", **changes)
    assert len(str(error.value)) < 500


def test_layer_types_must_list_every_layer_by_a_known_name() -> None:
    with pytest.raises(FormatError, match="must list 4 layers"):
        read("gemma3_text", layer_types=["full_attention"])
    with pytest.raises(FormatError, match="'linear_attention'"):
        read("gemma3_text", layer_types=["linear_attention"] * 4)


@pytest.mark.parametrize(
    ("model_type", "changes", "text"),
    [
        ("gemma3_text", {"use_bidirectional_attention": True}, "bidirectional"),
        ("llama", {"mlp_bias": True}, "MLP biases"),
        ("llama", {"rope_scaling": LLAMA3 | {"rope_type": "longrope"}}, "longrope"),
    ],
)
def test_variants_of_a_family_are_refused_by_name(model_type: str, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UnsupportedModelError, match=text):
        read(model_type, **changes)


@pytest.mark.parametrize("key", PLAUSIBLE)
def test_a_number_outside_of_every_working_model_is_refused_in_both_formats(key: str) -> None:
    least, most = PLAUSIBLE[key]
    for prefix in ("", "llama."):
        for value in (least, most, (least * most) ** 0.5):
            assert Fields({prefix + key: value}, "x", prefix).number(key) == value
        for value in (least * 0.99, most * 1.01, -least, float("nan"), float("inf"), True, str(least)):
            with pytest.raises(FormatError, match=prefix + key):
                Fields({prefix + key: value}, "x", prefix).number(key)
