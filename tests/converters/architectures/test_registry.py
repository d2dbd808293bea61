import importlib

import pytest

from converters.architectures import FAMILIES, GGUF_FAMILIES, family_of, family_of_gguf
from toolkit.errors import UnsupportedModelError


@pytest.mark.parametrize("module", sorted({*FAMILIES.values(), *GGUF_FAMILIES.values()}))
def test_a_family_says_which_names_it_reads_and_is_registered_under_exactly_those(module: str) -> None:
    family = importlib.import_module(module)
    assert sorted(family.MODEL_TYPES) == sorted(name for name, path in FAMILIES.items() if path == module)
    assert sorted(family.GGUF_ARCHITECTURES) == sorted(name for name, path in GGUF_FAMILIES.items() if path == module)


@pytest.mark.parametrize("find", [family_of, family_of_gguf])
def test_an_unknown_name_is_refused_with_the_known_ones(find: object) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'bert' is not supported\n  why: supported are gemma, .*qwen3\n  fix: "):
        find("bert")  # type: ignore[operator]


def test_an_import_error_inside_a_family_is_not_called_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "broken", "converters.architectures.no_such_module")
    with pytest.raises(ModuleNotFoundError):
        family_of("broken")
