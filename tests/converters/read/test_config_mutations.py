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
NUMBER, WHOLE, TEXT = "must be a number", "must be a whole number", "must be text"
POSITIVE, OBJECT = "must be finite and above zero", "must be an object"
# key -> what must be said of it -> the values it must be said of, by a model that has the key.
REFUSED: dict[str, dict[str, list[Any]]] = {
    "rms_norm_eps": {
        POSITIVE: [0, -1e-6, NAN, INFINITY], "must be between 1e-12 and 0.01": [1e9, 0.5, 1e-30], NUMBER: ["1e-6", True, [1e-6]],
    },
    "vocab_size": {
        "must be between 1 and 4194304": [0, -5, 2**40], "has shape (320, 32), config.json asks for": [319, 321],
        WHOLE: [320.0, "320", True],
    },
    "hidden_size": {
        "must be between 1 and 1048576": [0, 2**60], "has shape (320, 32), config.json asks for": [31, 33, 64], WHOLE: ["32", True, 32.0],
    },
    "intermediate_size": {"must be between 1 and 1048576": [0, 2**40], "config.json asks for (47, 32)": [47], WHOLE: [True]},
    "num_hidden_layers": {
        "must be between 1 and 1024": [0, 10**9], "9 unknown, first model.layers.3.": [3], "9 missing, first model.layers.4.": [5],
        "9180 missing, first model.layers.4.": [1024], WHOLE: [True, "4"],
    },
    "num_attention_heads": {
        "must be between 1 and": [0], "2 must divide num_attention_heads 3": [3], "config.json asks for (96, 32)": [8], WHOLE: [True],
    },
    "num_key_value_heads": {
        "must be between 1 and": [0], "3 must divide num_attention_heads 4": [3], "config.json asks for (12, 32)": [1],
        "config.json asks for (48, 32)": [4], WHOLE: [True],
    },
    "head_dim": {
        "must be between 1 and 1048576": [0, 2**30], "config.json asks for (40, 32)": [10], "must be even for RoPE, found 13": [13],
        "config.json asks for (56, 32)": [14], WHOLE: [True, "12"],
    },
    "max_position_embeddings": {"must be between 1 and 2147483648": [0, -1, 2**40], WHOLE: [True, "128"]},
    "rope_parameters": {
        f"rope_parameters {OBJECT}": [[], 3, "x", True], f"rope_theta {NUMBER}": [{"rope_theta": "x"}],
        f"rope_theta {POSITIVE}": [{"rope_theta": 0}, {"rope_theta": 1e30}, {"rope_theta": NAN}],
        "rope_type is missing, and there is a factor": [{"factor": 4.0}],
        "holds 'a', but is either numbers or an object each": [{"a": {"rope_theta": 1e4}}],
        "low_freq_factor is missing": [{"rope_type": "llama3", "factor": 8.0}],
        f"factor {POSITIVE}": [{"rope_type": "linear", "factor": 0}, {"rope_type": "linear", "factor": 1e30}],
        f"factor {NUMBER}": [{"rope_type": "linear", "factor": "4"}], f"rope_type {TEXT}": [{"rope_type": 3}],
        "low_freq_factor must be below high_freq_factor 1": [LLAMA3 | {"low_freq_factor": 4.0, "high_freq_factor": 1.0}],
        f"full_attention {OBJECT}": [{"full_attention": []}],
        "holds 'rope_theta', but is either numbers or an object each": [{"full_attention": {"rope_theta": 1e4}, "rope_theta": 1e4}],
        "has nothing for full_attention layers": [{"sliding_attention": {"rope_theta": 1e4}}],
    },
    "rope_scaling": {
        f"rope_scaling {OBJECT}": [[], 3, "x"], "rope_type is missing, and there is a factor": [{"factor": 2.0}],
        "factor is missing": [{"type": "linear"}], f"factor {POSITIVE}": [{"type": "linear", "factor": -1}],
    },
    "eos_token_id": {"must hold token ids in 0..319": [True, -1, 320, "2", [2, None], [[2]], 2.0, {}]},
    "bos_token_id": {"must be between 0 and 319": [-1, 320], WHOLE: [True, "1", [1]]},
    "tie_word_embeddings": {"must be true or false": [1, "true", []], "has no lm_head.weight": [False]},
    "hidden_act": {TEXT: [1, [], True], "'nope' is not an activation this reads": ["nope"]},
    "model_type": {TEXT: [1, True, []], "model_type '' is not supported": [""], "model_type 'nope' is not supported": ["nope"]},
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
    monkeypatch.setattr(pipeline, "give_back_memory", lambda: None)  # seconds, in a process with all that the tests have loaded
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
            what, why, fix = err.strip().splitlines()[-3:]
            assert what and why.startswith("  why: ") and fix.startswith("  fix: "), err
        codes.append(code)
    return codes[0], codes[1]


def test_the_sound_checkpoints_are_inspected_and_converted(
    folders: dict[str, Path], small_convert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in MODELS:
        assert both(changed(folders, name, small_convert / "model"), capsys) == (0, 0)


@pytest.mark.parametrize(("key", "words"), [(key, words) for key, said in REFUSED.items() for words in said])
def test_a_value_no_model_can_have_is_refused_by_its_key(
    folders: dict[str, Path], small_convert: Path, key: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in REFUSED[key][words]:
        place = changed(folders, "llama-3.2", small_convert / "model", **{key: value})
        with pytest.raises(FormatError) as caught:
            read_checkpoint(place)
        said = f"{caught.value.what} {caught.value.why}"
        assert key in said and words in said, value
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
