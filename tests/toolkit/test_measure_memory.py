from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiny_bundle import tiny_bundle
from toolkit.calibration import read_calibration
from toolkit.errors import BackendUnavailableError, EngineError
from toolkit.manifest import MANIFEST_NAME
from toolkit.manifest_reader import load_manifest
from toolkit.measure_memory import can_measure, measure_memory
from toolkit.memory import estimate_memory

pytestmark = [
    pytest.mark.usefixtures("module_cache"),
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory of processes is read from /proc"),
]


def test_files_that_are_no_bundle_yet_are_measured_with_the_manifest_they_will_get(chat_bundle: Path, tmp_path: Path) -> None:
    files = tmp_path / "building"
    files.mkdir()
    shutil.copy(chat_bundle / "model.litertlm", files)
    unsealed = replace(load_manifest(chat_bundle), files=(), context_length=384)
    measured = measure_memory(files, unsealed)
    assert list(files.iterdir()) == [files / "model.litertlm"], "nothing is left behind"
    runs = measured["measured"]["runs"]
    assert [(run["context_length"], run["is_first_start"]) for run in runs] == [(192, True), (192, False), (384, False)]
    assert all(run["peak_rss_bytes"] >= run["mapped_bytes"] > 2**20 and run["address_space_bytes"] > run["peak_rss_bytes"] for run in runs)
    calibrated = replace(unsealed, memory={**unsealed.memory, **measured})
    assert read_calibration(calibrated) is not None
    later = estimate_memory(calibrated, context_length=384, is_first_start=False)
    assert later.is_calibrated and later.peak_rss_bytes == pytest.approx(runs[2]["peak_rss_bytes"], rel=0.001)


def test_a_context_that_holds_no_sentence_is_filled_with_what_it_holds(chat_bundle: Path, tmp_path: Path) -> None:
    folder = tiny_bundle(tmp_path / "bundle", model=chat_bundle / "model.litertlm")
    manifest = replace(load_manifest(folder), context_length=128)
    (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    runs = measure_memory(folder)["measured"]["runs"]
    assert [run["context_length"] for run in runs] == [64, 64, 128]


def test_what_a_killed_measurement_left_goes_and_what_may_still_run_stays(chat_bundle: Path, own_folders: Path) -> None:
    place = own_folders / "cache" / "measuring"
    for name in ("killed", "running"):
        (place / name / "cache").mkdir(parents=True)
    os.utime(place / "killed", (0, 0))
    assert measure_memory(chat_bundle)
    assert [left.name for left in place.iterdir()] == ["running"]


def test_a_target_nobody_runs_is_not_measured(tmp_path: Path, tiny_litertlm: Path) -> None:
    assert measure_memory(tiny_bundle(tmp_path / "tiny-coreml-fp32", model=tiny_litertlm, target="coreml")) == {}


def test_files_an_engine_refuses_are_named(tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(b"garbage" * 1000)
    with pytest.raises(EngineError, match="cannot be measured at 256 tokens") as caught:
        measure_memory(tiny_bundle(tmp_path / "bundle", model=tmp_path / "garbage"))
    assert "magic" in caught.value.why
    assert caught.value.fix.endswith('toolkit run BUNDLE "hello" --context 256') and len(str(caught.value).splitlines()) == 3


def test_speech_and_an_engine_that_is_not_installed_are_left_out(chat_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = load_manifest(chat_bundle)
    assert can_measure(manifest) and not can_measure(replace(manifest, spec={**manifest.spec, "model_type": "whisper"}))
    assert not can_measure(replace(manifest, target="mlx")), "/proc is no Apple's, and elsewhere mlx is no measure of its bundles"

    def missing(*_: object, **__: object) -> None:
        raise BackendUnavailableError("the engine is not installed", fix="install it")

    monkeypatch.setattr("toolkit.measure_memory._run", missing)
    assert measure_memory(chat_bundle) == {}
