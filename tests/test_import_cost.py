"""`import toolkit` must stay cheap: a phone has none of these packages, and on every machine a user waits for them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_LOADED_BY = """
import sys
before = set(sys.modules)
{statement}
import json
print(json.dumps(sorted({{name.partition('.')[0] for name in set(sys.modules) - before}})))
"""
_OWN = {"toolkit", "sitecustomize", "__editable___ondevice_toolkit_0_1_0_finder"}


def packages_loaded_by(statement: str) -> set[str]:
    """Top-level names a fresh interpreter loads for one statement, the standard library and ourselves left out."""
    command = [sys.executable, "-c", _LOADED_BY.format(statement=statement)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(json.loads(result.stdout)) - set(sys.stdlib_module_names) - _OWN


@pytest.mark.parametrize(
    "statement", ["import toolkit", "from toolkit import Bundle", "import toolkit.catalog", "import toolkit.fetch", "import toolkit.cli"]
)
def test_importing_the_runtime_loads_no_third_party_package(statement: str) -> None:
    assert packages_loaded_by(statement) == set()


def test_the_check_sees_a_third_party_package() -> None:
    assert "hypothesis" in packages_loaded_by("import toolkit, hypothesis")
