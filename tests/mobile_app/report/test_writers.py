from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mobile_app.report.document import as_json
from mobile_app.report.html import write_html
from mobile_app.report.labels import load_labels
from mobile_app.report.markdown import escape, write_markdown
from mobile_app.report.template import built_in_templates
from tests.mobile_app.report.spoken import PUMP, note_of

HOSTILE = 'The <script>alert(1)</script> & "pump" | leaks `badly` [x](http://host) # now.'


class Page(HTMLParser):
    """Names, ids and links of a page; tags must be closed in order."""

    VOID = ("meta", "br", "hr", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.add(str(value))
            if name in ("href", "src"):
                self.links.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def test_every_evidence_link_of_the_page_leads_to_a_sentence() -> None:
    page = Page(write_html(note_of(*PUMP)))
    assert page.links
    assert {link.removeprefix("#") for link in page.links} <= page.ids
    assert len([name for name in page.ids if name.startswith("s")]) == len(PUMP)


def test_nothing_said_becomes_markup_of_the_page_and_nothing_is_fetched() -> None:
    text = write_html(note_of("I'm at pump room 3.", HOSTILE, "Replace it today.", "Good."))
    page = Page(text)
    assert "script" not in page.tags and "img" not in page.tags
    assert all(link.startswith("#") for link in page.links)
    assert "default-src 'none'" in text
    assert HOSTILE in page.text


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=6), st.sampled_from(["en", "ja"]))
def test_whatever_was_said_every_file_is_sound_and_every_field_said(said: list[str], language: str) -> None:
    note = note_of(*said, "Pump 3 leaks.", language=language)
    page = Page(write_html(note))
    assert {link.removeprefix("#") for link in page.links} <= page.ids
    assert json.loads(json.dumps(as_json(note), allow_nan=False))["n_dropped"] == 0
    assert write_markdown(note).encode("utf-8")


def test_the_page_is_dark_in_a_dark_place() -> None:
    assert "prefers-color-scheme: dark" in write_html(note_of(*PUMP))


@pytest.mark.parametrize("character", list("\\`*_{}[]<>#|~&!"))
def test_no_character_said_is_markup_in_markdown(character: str) -> None:
    assert escape(f"a{character}b") == f"a\\{character}b"


@pytest.mark.parametrize(("said", "expected"), [("1. one", "1\\. one"), ("- one", "\\- one"), ("2.5 bar", "2.5 bar"), ("-5 bar", "-5 bar")])
def test_a_number_at_the_start_of_a_line_begins_no_list(said: str, expected: str) -> None:
    assert escape(said) == expected


def test_markdown_shows_every_field() -> None:
    text = write_markdown(note_of(*PUMP))
    for shown in (
        "# Inspection report: pump room 3",
        "| Discharge pressure | 2.7 bar |",
        "Owner: Dave Miller",
        "2026-12-04",
        "(00:10.0 - 00:15.0)",
    ):
        assert shown in text
    assert "&lt;b" not in text and "\\<b\\>" in text


@pytest.mark.parametrize("template", built_in_templates())
@pytest.mark.parametrize("language", ["en", "ja"])
def test_each_template_is_written_in_both_languages(template: str, language: str) -> None:
    said = (
        PUMP
        if language == "en"
        else ("現場は第二ポンプ室です。", "圧力は二点五バールです。", "油漏れがあります。", "弁を交換してください。")
    )
    note = note_of(*said, language=language, template=template)
    markdown, page = write_markdown(note), write_html(note)
    assert f'<html lang="{language}">' in page
    for section in note.template.sections:
        title = section.titles.get(language) or load_labels(language)[section.shows]
        if section.shows in ("findings", "measurements", "actions", "questions"):
            assert f"## {title}" in markdown and f"<h2>{title}</h2>" in page


def test_both_languages_have_the_same_labels() -> None:
    assert set(load_labels("en")) == set(load_labels("ja"))


def test_the_document_has_the_evidence_of_every_field() -> None:
    note = note_of(*PUMP)
    document = json.loads(json.dumps(as_json(note), allow_nan=False))
    assert document["schema_version"] == 1
    finding = document["findings"][1]
    evidence = finding["evidence"]
    assert note.transcript.text[evidence["start"] : evidence["end"]] == PUMP[3]
    assert (evidence["start_s"], evidence["end_s"], finding["severity"]) == (15.0, 20.0, "major")
    assert [one["amount"]["value"] for one in document["measurements"]] == [2.7, 3]
    assert len(document["sentences"]) == document["n_sentences"] == len(PUMP)


def test_the_format_is_described_field_by_field() -> None:
    from pathlib import Path

    text = (Path(__file__).parents[3] / "docs/formats/report.md").read_text("utf-8")
    document = as_json(note_of(*PUMP))
    names = set(document) | set(document["sentences"][0]) | set(document["measurements"][0]["amount"]) | {"files"}
    assert [name for name in sorted(names) if not re.search(rf"`{name}`", text)] == []
