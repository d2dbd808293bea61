from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from toolkit.errors import BackendUnavailableError
from toolkit.plugins import GROUP, call_plugin, load_plugin


def offer(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    points = EntryPoints(EntryPoint("inspect_source", value, GROUP) for value in values)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **wanted: points.select(**wanted))


def test_a_plug_in_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "json:dumps")
    assert call_plugin("inspect_source", [1]) == "[1]"


def test_one_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch)
    with pytest.raises(BackendUnavailableError) as caught:
        load_plugin("inspect_source")
    assert caught.value.exit_code == 5 and "pip install 'ondevice-toolkit[convert]'" in caught.value.fix


def test_a_package_that_is_missing_is_named_when_it_loads_and_when_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "package_that_is_not_there:run")
    with pytest.raises(BackendUnavailableError, match="package_that_is_not_there"):
        call_plugin("inspect_source", "x")

    def needs(source: str) -> Any:
        import another_that_is_not_there  # noqa: F401

    monkeypatch.setattr("toolkit.plugins.load_plugin", lambda name: needs)
    with pytest.raises(BackendUnavailableError, match="another_that_is_not_there"):
        call_plugin("inspect_source", "x")


def test_a_defect_of_a_plug_in_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "json:no_such_function")
    with pytest.raises(AttributeError):
        call_plugin("inspect_source", "x")
