"""A .tflite opened for running: what the library made for it is given back once, whatever fails."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny_speech import TinySpeech, samples, sound
from toolkit.errors import EngineError, FormatError
from toolkit.speech.litert_c import LiteRtLibrary, installed_libraries
from toolkit.speech.litert_model import LiteRtModel

KINDS = ("Environment", "Model", "Options", "OpaqueOptions", "CompiledModel", "TensorBuffer")


class Ledger(LiteRtLibrary):
    """The real library, which notes what it makes and destroys, and fails with status 1 where it is told to."""

    def __init__(self, path: str, fails_at: str = "") -> None:
        super().__init__(path)
        self.fails_at = fails_at
        self.made: list[tuple[str, int | None]] = []
        self.destroyed: list[tuple[str, int | None]] = []

    def call(self, name: str, *arguments: object) -> None:
        if name == self.fails_at:
            self._functions = {**self._functions, name: lambda *given: 1}
        super().call(name, *arguments)
        if name == "AddOpaqueOptions":  # they belong to the options from here on
            self.made = [pair for pair in self.made if pair[0] != "OpaqueOptions"]

    def handle(self, name: str, *arguments: object) -> ctypes.c_void_p:
        made = super().handle(name, *arguments)
        kind = next((kind for kind in KINDS if name.startswith((f"Create{kind}", f"CreateManaged{kind}"))), None)
        if kind is not None:
            self.made.append((kind, made.value))
        return made

    def destroy(self, kind: str, handle: ctypes.c_void_p) -> None:
        self.destroyed.append((kind, handle.value))
        super().destroy(kind, handle)


@pytest.fixture(scope="module")
def path() -> str:
    found = installed_libraries()
    if not found:
        pytest.skip("needs the litert extra")
    return str(next(iter(found.values())))


@pytest.fixture(scope="module")
def model(tiny_speech: TinySpeech, path: str) -> Iterator[LiteRtModel]:
    with LiteRtModel(tiny_speech.graph, LiteRtLibrary(path), n_threads=1) as opened:
        yield opened


def test_closing_gives_back_everything_once_buffers_first_and_the_environment_last(tiny_speech: TinySpeech, path: str) -> None:
    ledger = Ledger(path)
    model = LiteRtModel(tiny_speech.graph, ledger, n_threads=1)
    model.input_buffer("decode", "token")
    assert ledger.destroyed == []
    model.close()
    model.close()
    assert sorted(ledger.destroyed) == sorted(ledger.made)  # the mutant: a second close that destroys again makes it longer
    assert [kind for kind, _ in ledger.destroyed] == ["TensorBuffer", "CompiledModel", "Options", "Model", "Environment"]


STEPS = (
    "CreateEnvironment",
    "CreateModelFromFile",
    "CreateOptions",
    "SetOptionsHardwareAccelerators",
    "CreateOpaqueOptions",
    "AddOpaqueOptions",
    "CreateCompiledModel",
    "GetNumModelSignatures",
    "GetSignatureInputName",
)


@pytest.mark.parametrize("step", STEPS)
def test_what_was_made_before_a_step_failed_is_destroyed_once(step: str, tiny_speech: TinySpeech, path: str) -> None:
    ledger = Ledger(path, fails_at=step)
    with pytest.raises(EngineError, match=f"LiteRt{step} failed"):
        LiteRtModel(tiny_speech.graph, ledger, n_threads=1)
    assert sorted(ledger.destroyed) == sorted(ledger.made)
    assert bool(ledger.made) == (step != "CreateEnvironment")


@pytest.mark.parametrize(
    "step", ["GetCompiledModelInputBufferRequirements", "CreateManagedTensorBufferFromRequirements", "GetTensorBufferPackedSize"]
)
def test_a_buffer_that_fails_halfway_is_given_back_with_the_model(step: str, tiny_speech: TinySpeech, path: str) -> None:
    ledger = Ledger(path, fails_at=step)
    with LiteRtModel(tiny_speech.graph, ledger, n_threads=1) as model, pytest.raises(EngineError, match=f"LiteRt{step} failed"):
        model.input_buffer("decode", "token")
    assert sorted(ledger.destroyed) == sorted(ledger.made)


def test_a_closed_model_refuses_instead_of_touching_freed_memory(tiny_speech: TinySpeech, path: str) -> None:
    model = LiteRtModel(tiny_speech.graph, LiteRtLibrary(path), n_threads=1)
    names = model.signatures["encode"]
    inputs = {name: model.input_buffer("encode", name) for name in names.inputs}
    run = model.runner("encode", inputs, {name: model.output_buffer("encode", name) for name in names.outputs})
    inputs["waveform"].write(samples(sound()))
    run()
    model.close()
    assert inputs["waveform"].handle.value is None and run.compiled.value is None
    with pytest.raises(EngineError, match="RunCompiledModel failed"):
        run()
    with pytest.raises(EngineError, match="LockTensorBuffer failed"):
        inputs["waveform"].read()


def test_a_file_that_is_not_there_is_an_engine_error(path: str, tmp_path: Path) -> None:
    ledger = Ledger(path)
    with pytest.raises(EngineError, match="CreateModelFromFile failed"):
        LiteRtModel(tmp_path / "missing.tflite", ledger, n_threads=1)
    assert ledger.destroyed == ledger.made


@pytest.mark.parametrize("count", [0, 65])
def test_a_number_of_signatures_that_none_of_ours_has_is_refused(count: int, tiny_speech: TinySpeech, path: str) -> None:
    class Many(LiteRtLibrary):
        def number(self, name: str, *arguments: object) -> int:
            return count if name == "GetNumModelSignatures" else super().number(name, *arguments)

    with pytest.raises(FormatError, match=f"it has {count} signatures"):
        LiteRtModel(tiny_speech.graph, Many(path), n_threads=1)


def test_a_tensor_whose_bytes_are_not_its_shapes_means_another_structure(tiny_speech: TinySpeech, path: str) -> None:
    class Other(LiteRtLibrary):
        def number(self, name: str, *arguments: object) -> int:
            return 8 if name == "GetTensorBufferPackedSize" else super().number(name, *arguments)

    with LiteRtModel(tiny_speech.graph, Other(path), n_threads=1) as model:
        with pytest.raises(EngineError, match=r"token of shape \(1, 1\) takes 8 bytes, not 4"):
            model.input_buffer("decode", "token")


def test_a_runner_takes_exactly_the_tensors_of_its_signature(model: LiteRtModel) -> None:
    token = model.input_buffer("decode", "token")
    with pytest.raises(ValueError, match=r"encode takes \['waveform'\], got \['token'\]"):
        model.runner("encode", {"token": token}, {})
    with pytest.raises(ValueError, match=r"encode: waveform has shape \(1, 16000\), the buffer \(1, 1\)"):
        model.runner("encode", {"waveform": token}, {})


@pytest.mark.parametrize("name", ["weights", 'a "quoted" name', "a\\backslash", "it's #1 = a name"])
def test_packed_weights_are_kept_in_the_very_file_that_is_asked_for(name: str, tiny_speech: TinySpeech, path: str, tmp_path: Path) -> None:
    with LiteRtModel(tiny_speech.graph, LiteRtLibrary(path), n_threads=1, cache_path=tmp_path / name):
        pass
    assert [(kept.name, kept.stat().st_size > 0) for kept in tmp_path.iterdir()] == [(name, True)]
