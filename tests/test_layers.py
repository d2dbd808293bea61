"""Who may import whom: rooms meet only through the bundle, and the runtime stands alone."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("toolkit", "converters", "mobile_app", "device_tests")
MAY_IMPORT = {
    "toolkit": {"toolkit"},
    "converters": {"converters", "toolkit"},
    "mobile_app": {"mobile_app", "toolkit"},
    "device_tests": {"device_tests", "toolkit"},
}


def imported_packages(node: ast.AST) -> Iterator[str]:
    """Top-level package names one import statement loads."""
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        yield node.module.partition(".")[0]


def at_import_time(tree: ast.Module) -> Iterator[ast.AST]:
    """Statements that run when the module is imported: function bodies and `if TYPE_CHECKING:` are left out."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting.extend(node.orelse)
            continue
        waiting.extend(ast.iter_child_nodes(node))


def forbidden_rooms(source: str, room: str) -> set[str]:
    """Rooms that `source`, a module of `room`, imports anywhere and may not."""
    loaded = {name for node in ast.walk(ast.parse(source)) for name in imported_packages(node)}
    return {name for name in loaded if name in ROOMS} - MAY_IMPORT[room]


def third_party_at_import(source: str) -> set[str]:
    """Packages outside the standard library and the rooms that importing this module loads."""
    loaded = {name for node in at_import_time(ast.parse(source)) for name in imported_packages(node)}
    return loaded - set(sys.stdlib_module_names) - set(ROOMS)


def modules(room: str) -> list[Path]:
    found = sorted((ROOT / room).rglob("*.py"))
    assert found, f"{room}/ holds no module, so this test would check nothing"
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_it_may(room: str) -> None:
    wrong = {str(path.relative_to(ROOT)): found for path in modules(room) if (found := forbidden_rooms(path.read_text("utf-8"), room))}
    assert wrong == {}


def test_no_module_of_the_runtime_imports_a_third_party_package_when_imported() -> None:
    found = {str(path.relative_to(ROOT)): third_party_at_import(path.read_text("utf-8")) for path in modules("toolkit")}
    wrong = {path: packages for path, packages in found.items() if packages}
    assert wrong == {}


@pytest.mark.parametrize(
    "source",
    [
        "import converters",
        "from converters.spec import ModelSpec",
        "def f():\n    import mobile_app.screens",
        "if x:\n    import device_tests",
    ],
)
def test_the_room_check_sees_a_forbidden_import(source: str) -> None:
    assert forbidden_rooms(source, "toolkit") != set()


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np",
        "try:\n    from rich import print\nexcept ImportError:\n    pass",
        "class A:\n    import torch",
        "if True:\n    import mlx",
    ],
)
def test_the_third_party_check_sees_an_import_at_module_level(source: str) -> None:
    assert third_party_at_import(source) != set()


def test_the_third_party_check_lets_lazy_and_typing_imports_pass() -> None:
    source = "import json\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy\ndef f():\n    import torch\n"
    assert third_party_at_import(source) == set()
