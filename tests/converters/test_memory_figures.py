from pathlib import Path
from typing import Any

import pytest

from converters import memory_figures as module
from converters.memory_figures import memory_figures
from tests.converters.desk import Notes
from tests.toolkit.small_manifest import small_manifest
from toolkit.errors import EngineError

MEASURED = {"measured": {"runs": []}}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    asked: list[Any] = []
    monkeypatch.setattr(module, "can_measure", lambda manifest: manifest.target == "litert")
    monkeypatch.setattr(module, "measure_memory", lambda folder, manifest: (asked.append((folder, manifest)), MEASURED)[1])
    return asked


def test_what_was_measured_is_added_to_what_is_known(measured: list[Any], tmp_path: Path) -> None:
    manifest = small_manifest(memory={"weights_bytes": 7})
    assert memory_figures(tmp_path, manifest, Notes()) == {"weights_bytes": 7, **MEASURED}
    assert measured == [(tmp_path, manifest)]


def test_a_target_no_engine_here_opens_is_left_as_it_is(measured: list[Any], tmp_path: Path) -> None:
    assert memory_figures(tmp_path, small_manifest(target="coreml", memory={"weights_bytes": 7}), Notes()) == {"weights_bytes": 7}
    assert measured == []


@pytest.mark.parametrize("error", [EngineError("it cannot be measured", why="the kernel killed it", fix="none"), OSError("no space left")])
def test_a_failure_is_a_note_and_never_the_conversions(
    error: Exception, measured: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(module, "measure_memory", fail)
    notes = Notes()
    assert memory_figures(tmp_path, small_manifest(memory={"weights_bytes": 7}), notes) == {"weights_bytes": 7}
    [note] = notes.texts
    assert "arithmetic alone" in note and str(getattr(error, "why", error)) in note


def test_an_interrupt_is_no_failure(measured: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "measure_memory", interrupt)
    with pytest.raises(KeyboardInterrupt):
        memory_figures(tmp_path, small_manifest(), Notes())
