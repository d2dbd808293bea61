"""The documents name commands, targets, files and figures that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from converters.recipe import known_recipes
from toolkit.cli import COMMANDS

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
READMES = (ROOT / "README.md", ROOT / "README.ja.md")
MAKE_TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE))


def code_blocks(text: str) -> list[str]:
    return re.findall(r"```(?:\w*)\n(.*?)```", text, flags=re.DOTALL)


def words_after(command: str, text: str) -> set[str]:
    """What stands after `command` at the start of a line of a code block, or after it in inline code."""
    lines = [line for block in code_blocks(text) for line in block.splitlines()] + re.findall(r"`([^`\n]+)`", text)
    return {match[1] for line in lines if (match := re.match(rf"{command} ([a-z][a-z-]*)", line))}


def broken_links(path: Path, text: str) -> list[str]:
    targets = [target for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in target]
    return [target for target in targets if not (path.parent / target).exists()]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_document_leads_to_a_file(path: Path) -> None:
    assert broken_links(path, path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_a_document_names_exist(path: Path) -> None:
    text = path.read_text("utf-8")
    assert words_after("make", text) <= MAKE_TARGETS
    assert words_after("toolkit", text) <= set(COMMANDS)


def test_the_checks_see_a_broken_link_and_an_unknown_command() -> None:
    text = "[a](missing.md) [b](https://host/x) `toolkit fly`\n```\nmake coffee   # hot\n```\n"
    assert broken_links(ROOT / "README.md", text) == ["missing.md"]
    assert words_after("toolkit", text) == {"fly"}
    assert words_after("make", text) == {"coffee"}


def test_both_readmes_show_the_same_commands() -> None:
    without_comments = [
        [re.sub(r"\s*# .*", "", line) for block in code_blocks(path.read_text("utf-8")) for line in block.splitlines()] for path in READMES
    ]
    assert without_comments[0] == without_comments[1]
    assert {"demo", "test"} <= words_after("make", READMES[0].read_text("utf-8"))


@pytest.mark.parametrize("path", READMES, ids=lambda path: path.name)
def test_a_readme_names_every_recipe(path: Path) -> None:
    text = path.read_text("utf-8")
    assert [recipe for recipe in known_recipes() if f"`{recipe}`" not in text] == []


def test_the_manifest_document_lists_every_field() -> None:
    from dataclasses import fields

    from toolkit.manifest import Fidelity, Manifest

    text = (ROOT / "docs/formats/manifest.md").read_text("utf-8")
    names = [field.name for record in (Manifest, Fidelity) for field in fields(record)]
    assert len(names) > 25
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_glossary_has_each_term_once_in_order_with_a_source() -> None:
    lines = (ROOT / "docs/glossary.md").read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")][1:]
    terms = [row[0] for row in rows]
    assert terms == sorted(set(terms), key=str.lower)
    assert all(len(row) == 3 and row[1] and row[2] for row in rows)


def test_every_pin_of_an_extra_is_in_the_constraints() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    wanted = {re.split(r"[;\[]", requirement)[0].strip() for requirements in extras.values() for requirement in requirements}
    pins = {line.strip() for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if not line.startswith("#")}
    unpinned = {requirement for requirement in wanted if "==" not in requirement}
    assert unpinned <= {"ondevice-toolkit", "mlx"}  # ourselves, and mlx[cpu], whose version stands behind the bracket
    assert wanted - unpinned <= pins
    assert "torch==2.13.0" in pins
    assert not any("+" in pin for pin in pins)
