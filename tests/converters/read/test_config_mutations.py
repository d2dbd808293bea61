"""A config.json with any value in any place: `inspect` and `convert` answer, or refuse with three lines and a documented code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from converters import pipeline
from converters.cli import main as convert
from converters.parts import Parts
from converters.read import read_checkpoint
from tests.converters.small_model import SmallTarget, SmallVerifier, small_parts
from tests.converters.tiny_checkpoints import LLAMA3, save_hf, tiny_model
from toolkit.cli import main as toolkit
from toolkit.errors import FormatError

MODELS = ("llama-3.2", "gemma3-linear", "qwen2-sliding")
NAN, INFINITY = float("nan"), float("inf")
ODD_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 13, 31, 10**6, 2**31, 2**63, 10**40, 0.0, 1e-300, 0.5, 1e9, 1e308, -1.5, NAN, INFINITY,
    "", "1", "nan", "yarn", "default", "full_attention", [], [1], [None], ["full_attention"], {}, {"factor": 0}, {"rope_theta": {}},
    {"a": {"b": 1}}, {"rope_type": []}, {"full_attention": 3}, {"sliding_attention": {}}, [[[[]]]], "x" * 5000, {"x" * 500: 1},
]  # fmt: skip
VALUES = st.sampled_from(ODD_VALUES) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["factor", "rope_theta", "type", "rope_type", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
FUZZ = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# What each key must be refused for, by a model that has it.
REFUSED: dict[str, list[Any]] = {
    "rms_norm_eps": [0, -1e-6, 1e9, 0.5, 1e-30, NAN, INFINITY, "1e-6", True, [1e-6]],
    "vocab_size": [0, -5, 2**40, 319, 321, 320.0, "320", True],
    "hidden_size": [0, 2**60, 31, 33, 64, "32", True, 32.0],
    "intermediate_size": [0, 47, 2**40, True],
    "num_hidden_layers": [0, 3, 5, 1024, 10**9, True, "4"],
    "num_attention_heads": [0, 3, 8, True],
    "num_key_value_heads": [0, 1, 3, 4, True],
    "head_dim": [0, 10, 13, 14, 2**30, True, "12"],
    "max_position_embeddings": [0, -1, 2**40, True, "128"],
    "rope_parameters": [
        [], 3, "x", True, {"rope_theta": "x"}, {"rope_theta": 0}, {"rope_theta": 1e30}, {"rope_theta": NAN}, {"factor": 4.0},
        {"a": {"rope_theta": 1e4}}, {"rope_type": "llama3", "factor": 8.0}, {"rope_type": "linear", "factor": 0},
        {"rope_type": "linear", "factor": 1e30}, {"rope_type": "linear", "factor": "4"}, {"rope_type": 3},
        LLAMA3 | {"low_freq_factor": 4.0, "high_freq_factor": 1.0}, {"full_attention": []},
        {"full_attention": {"rope_theta": 1e4}, "rope_theta": 1e4}, {"sliding_attention": {"rope_theta": 1e4}},
    ],
    "rope_scaling": [[], 3, "x", {"factor": 2.0}, {"type": "linear"}, {"type": "linear", "factor": -1}],
    "eos_token_id": [True, -1, 320, "2", [2, None], [[2]], 2.0, {}],
    "bos_token_id": [True, -1, 320, "1", [1]],
    "tie_word_embeddings": [1, "true", [], False],
    "hidden_act": [1, "nope", [], True],
    "model_type": [1, True, [], "", "nope"],
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sound tiny checkpoint of each model."""
    return {name: save_hf(tiny_model(name), tmp_path_factory.mktemp("sound") / name) for name in MODELS}


@pytest.fixture
def small_convert(own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`convert` with the real reader and a target that takes no time; returns the folder to work in."""

    def parts() -> Parts:
        small = small_parts(own_folders / "work", SmallTarget(), verifier=SmallVerifier())
        return Parts(
            **{**vars(small), "read_checkpoint": lambda source, name, license: read_checkpoint(source, name=name, accept_license=license)}
        )

    monkeypatch.setattr(pipeline, "default_parts", parts)
    return own_folders


def changed(folders: dict[str, Path], name: str, place: Path, **changes: Any) -> Path:
    """A copy of a checkpoint whose config.json has other values; the weights are links."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for path in folders[name].iterdir():
        if path.name != "config.json":
            (place / path.name).symlink_to(path)
    config = json.loads((folders[name] / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | changes))
    return place


def both(place: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    """The exit codes of `inspect` and `convert`, after looking at what they printed."""
    codes = []
    for command in (
        (toolkit, ["inspect", str(place), "--json"]),
        (
            convert,
            [str(place), "--out", str(place.parent / "out"), "--context", "64", "--to", "small", "--recipe", "fp32", "--force", "--json"],
        ),
    ):
        code = command[0](command[1])
        out, err = capsys.readouterr()
        assert "Traceback" not in err and "--debug" not in err, err
        assert code in (0, 2, 3, 4, 5, 6), err
        data = json.loads(out)
        if code:
            error = data["error"]
            assert error["what"] and error["why"] and error["fix"] and error["code"] == code
            assert len(err.strip().splitlines()[-3:]) == 3
        codes.append(code)
    return codes[0], codes[1]


def test_the_sound_checkpoints_are_inspected_and_converted(
    folders: dict[str, Path], small_convert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in MODELS:
        assert both(changed(folders, name, small_convert / "model"), capsys) == (0, 0)


@pytest.mark.parametrize("key", REFUSED)
def test_a_value_no_model_can_have_is_refused_by_its_key(
    folders: dict[str, Path], small_convert: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in REFUSED[key]:
        place = changed(folders, "llama-3.2", small_convert / "model", **{key: value})
        with pytest.raises(FormatError) as caught:
            read_checkpoint(place)
        named = key if key not in ("rope_parameters", "rope_scaling") else "rope|factor|type"
        said = f"{caught.value.what} {caught.value.why}"
        assert any(word in said for word in named.split("|")) or (key == "tie_word_embeddings" and "lm_head" in said), (value, said)
        assert both(place, capsys)[1] == 4
        inspected = toolkit(["inspect", str(place), "--json"])
        assert inspected == 4 or json.loads(capsys.readouterr().out)["unsupported"] is not None, value
        capsys.readouterr()


@FUZZ
@given(name=st.sampled_from(MODELS), key=st.data(), value=VALUES)
def test_no_value_anywhere_is_answered_with_a_traceback(
    folders: dict[str, Path], small_convert: Path, capsys: pytest.CaptureFixture[str], name: str, key: st.DataObject, value: Any
) -> None:
    config = json.loads((folders[name] / "config.json").read_text())
    chosen = key.draw(st.sampled_from([*sorted(config), "rope_scaling", "rope_theta", "quantization_config", "num_experts", "text_config"]))
    inner = config.get(chosen)
    if isinstance(inner, dict) and inner and key.draw(st.booleans()):
        value = inner | {key.draw(st.sampled_from(sorted(inner))): value}
    inspected, converted = both(changed(folders, name, small_convert / "model", **{chosen: value}), capsys)
    assert converted == inspected or (inspected == 0 and converted in (2, 4)), (chosen, value)


@FUZZ
@given(name=st.sampled_from(MODELS), key=st.data())
def test_no_missing_key_is_answered_with_a_traceback(
    folders: dict[str, Path], small_convert: Path, capsys: pytest.CaptureFixture[str], name: str, key: st.DataObject
) -> None:
    place = changed(folders, name, small_convert / "model")
    config = json.loads((place / "config.json").read_text())
    for gone in key.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3)):
        config.pop(gone, None)
    (place / "config.json").write_text(json.dumps(config))
    both(place, capsys)
