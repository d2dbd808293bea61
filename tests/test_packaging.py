"""What an installed copy needs is in the wheel, and what its commands name exists."""

from __future__ import annotations

import importlib
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("toolkit", "converters", "mobile_app", "device_tests")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def is_packaged(path: Path, package_data: dict[str, list[str]]) -> bool:
    """Whether setuptools takes a data file: by a pattern of its own package, or of its room's top."""
    is_package = (path.parent / "__init__.py").exists()
    below_room = path.relative_to(ROOT).parts[1:]
    return (is_package and any(fnmatch(path.name, pattern) for pattern in package_data["*"])) or any(
        fnmatch("/".join(below_room), pattern.replace("**/", "")) for pattern in package_data.get(path.relative_to(ROOT).parts[0], [])
    )


def data_files() -> list[Path]:
    found = [path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert ROOT / "toolkit" / "catalog.toml" in found
    return found


def test_every_data_file_of_a_room_is_in_the_wheel() -> None:
    package_data = PROJECT["tool"]["setuptools"]["package-data"]
    assert [str(path.relative_to(ROOT)) for path in data_files() if not is_packaged(path, package_data)] == []


def test_the_check_sees_a_data_file_that_would_be_left_out() -> None:
    assert [path for path in data_files() if not is_packaged(path, {"*": ["*.txt"]})] != []
    assert not is_packaged(ROOT / "toolkit" / "catalog.csv", PROJECT["tool"]["setuptools"]["package-data"])


def entry_points() -> list[str]:
    project = PROJECT["project"]
    return [*project["scripts"].values(), *project["entry-points"]["ondevice_toolkit.plugins"].values()]


@pytest.mark.parametrize("entry_point", entry_points())
def test_every_entry_point_is_a_function_that_exists(entry_point: str) -> None:
    module, _, function = entry_point.partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_all_holds_every_other_extra() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(everything.partition("[")[2].rstrip("]").split(","))
    assert named | {"all", "litert"} == set(extras)
    assert any("litert]" in requirement for requirement in extras["convert"])
