import json
from dataclasses import replace

import pytest

from converters.spec import ModelSpec, NormSpec, RopeSpec

SMOLLM2_135M = ModelSpec(
    model_type="llama",
    architecture="LlamaForCausalLM",
    n_layers=30,
    hidden_size=576,
    intermediate_size=1536,
    n_heads=9,
    n_kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    max_context_length=8192,
    layer_types=("full",) * 30,
    rope={"full": RopeSpec(100000.0, {"rope_type": "linear", "factor": 2.0})},
    norm=NormSpec(1e-5),
    activation="silu",
    tie_embeddings=True,
    eos_token_ids=(2, 0),
)


def test_a_spec_survives_a_trip_through_json() -> None:
    assert ModelSpec.from_dict(json.loads(json.dumps(SMOLLM2_135M.as_dict()))) == SMOLLM2_135M


def test_a_changed_field_shows_after_the_trip() -> None:
    changed = SMOLLM2_135M.as_dict() | {"eos_token_ids": [2]}
    assert ModelSpec.from_dict(changed) != SMOLLM2_135M


@pytest.mark.parametrize("broken", [{"n_layers": None}, {"n_heads_of_a_later_version": 3}])
def test_from_dict_refuses_missing_and_unknown_fields(broken: dict[str, object]) -> None:
    data = {key: value for key, value in (SMOLLM2_135M.as_dict() | broken).items() if value is not None or key not in broken}
    with pytest.raises(TypeError):
        ModelSpec.from_dict(data)


def test_parameters_are_those_the_publisher_states_and_a_tied_table_counts_once() -> None:
    assert SMOLLM2_135M.n_parameters == 134_515_008
    assert replace(SMOLLM2_135M, tie_embeddings=False).n_parameters == 134_515_008 + 49152 * 576


def test_kv_bytes_count_keys_and_values_of_every_layer() -> None:
    # 30 layers, keys and values, 3 heads of 64: 11,520 values; notes measured 59 MB at 1280 tokens in float32.
    assert SMOLLM2_135M.kv_bytes_per_token(1) == 11_520
    assert SMOLLM2_135M.kv_bytes_per_token(4) * 1280 == pytest.approx(59e6, rel=0.01)
    assert replace(SMOLLM2_135M, n_kv_heads=9).kv_bytes_per_token(1) == 34_560
