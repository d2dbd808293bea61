from __future__ import annotations

from pathlib import Path

import pytest

from mobile_app.report.evidence import Tag
from mobile_app.report.template import MAX_BYTES, built_in_templates, load_template
from toolkit.errors import FormatError, UsageError

GOOD = """
name = "round"
title = { en = "Round" }
nouns = ["kiln"]
[[sections]]
shows = "findings"
title = { en = "Seen" }
[[sections]]
shows = "not_placed"
[words]
finding = ["zorb"]
[units]
"bar" = ["barg"]
"""


def test_the_built_in_templates_load() -> None:
    assert built_in_templates() == ("inspection", "nursing", "site-visit")
    assert all(load_template(name).name == name for name in built_in_templates())


def test_a_template_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(GOOD)
    template = load_template(str(tmp_path / "own.toml"))
    assert [section.shows for section in template.sections] == ["findings", "not_placed"]
    assert (template.nouns, template.words[Tag.FINDING], template.units["bar"]) == (("kiln",), ("zorb",), ("barg",))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('name = "round"', "name = 3", "`name`"),
        ('shows = "not_placed"', 'shows = "summary"', "not_placed"),
        ('shows = "not_placed"', 'shows = "findings"', "twice"),
        ('shows = "findings"', 'shows = "secrets"', "secrets"),
        ("finding = ", "gossip = ", "gossip"),
        ('["zorb"]', '"zorb"', "words.finding"),
        ('["kiln"]', '[""]', "nouns"),
        ("[units]", "[unit]", "unit"),
        ('title = { en = "Round" }', "title = 1", "title"),
        ("[[sections]]", "[[sections", ""),
    ],
)
def test_what_is_wrong_with_a_template_is_named(tmp_path: Path, old: str, new: str, why: str) -> None:
    assert old in GOOD
    (tmp_path / "own.toml").write_text(GOOD.replace(old, new))
    with pytest.raises(FormatError) as raised:
        load_template(str(tmp_path / "own.toml"))
    assert why in raised.value.why


def test_an_unknown_or_huge_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no template"):
        load_template("nothing")
    (tmp_path / "own.toml").write_text("#" * (MAX_BYTES + 1))
    with pytest.raises(FormatError, match="no report template"):
        load_template(str(tmp_path / "own.toml"))
