"""Which targets take an architecture, as `toolkit inspect` tells it before any weight is read."""

from __future__ import annotations

import pytest

from converters.architectures import FAMILIES
from converters.targets import TARGETS, load_target, other_targets, targets_for
from toolkit.errors import UsageError


def test_a_family_of_every_target_is_offered_to_all_of_them() -> None:
    assert targets_for("llama") == targets_for("gemma3_text") == sorted(TARGETS)


def test_late_gemmas_are_offered_where_they_were_held_against_transformers() -> None:
    assert targets_for("gemma3n_text") == targets_for("gemma4_text") == ["litert", "mlx"]


def test_an_unknown_architecture_is_offered_nowhere() -> None:
    assert targets_for("mamba") == []


def test_every_family_that_is_read_can_be_converted_to_something() -> None:
    assert [family for family in FAMILIES if not targets_for(family)] == []


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_is_found_under_its_own_name(name: str) -> None:
    assert load_target(name).name == name


def test_a_target_that_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="there is no target 'coreml'"):
        load_target("coreml")


def test_the_advice_to_take_another_target_names_only_those_that_take_the_model() -> None:
    assert other_targets("onnx", "llama") == "use another target: --to gguf, litert or mlx"
    assert other_targets("gguf", "gemma3n_text") == "use another target: --to litert or mlx"
    assert other_targets("litert", "gemma4_text") == "use another target: --to mlx"
    assert "CONTRIBUTING.md" in other_targets("mlx", "mamba")
