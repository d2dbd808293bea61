"""A report as Markdown: readable as it stands, and nothing said in the note can be taken for markup."""

from __future__ import annotations

import re
from collections.abc import Callable

from mobile_app.report.document import Note
from mobile_app.report.evidence import Quote
from mobile_app.report.labels import amount, heading, load_labels, section_title, times

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~&!])")
_LIST_START = re.compile(r"^([-+]|[0-9]+(?=[.)]))(?=[.)]?\s)")


def write_markdown(note: Note) -> str:
    """The whole file."""
    return "\n".join(_Writer(note).lines()) + "\n"


def escape(text: str) -> str:
    """Text in which no character is markup."""
    escaped = _MARKUP.sub(r"\\\1", text)
    return _LIST_START.sub(lambda match: f"\\{match[1]}" if match[1] in "-+" else f"{match[1]}\\", escaped)


class _Writer:
    def __init__(self, note: Note) -> None:
        self._note, self._report, self._labels = note, note.report, load_labels(note.language)
        self._sections: dict[str, Callable[[], list[str]]] = {
            "summary": lambda: [f"- {self._cited(quote)}" for quote in self._report.summary],
            "findings": self._findings,
            "measurements": self._measurements,
            "actions": self._actions,
            "questions": lambda: [f"- {self._cited(quote)}" for quote in self._report.questions],
            "not_placed": lambda: [f"- {self._cited(quote)}" for quote in self._report.not_placed],
        }

    def lines(self) -> list[str]:
        note, labels = self._note, self._labels
        title = f": {escape(self._report.title.text)}" if self._report.title else ""
        lines = [f"# {escape(heading(note.template, note.language))}{title}", ""]
        lines += [f"- {name}: {value}" for name, value in self._head()]
        if note.source.is_truncated:
            lines += ["", f"**{labels['truncated']}**"]
        for section in note.template.sections:
            found = self._sections[section.shows]()
            if found or section.shows not in ("summary", "not_placed"):
                lines += ["", f"## {escape(section_title(section, note.language))}", "", *(found or [labels["none"]])]
        dropped = f", {self._report.n_dropped} {labels['dropped']}" if self._report.n_dropped else ""
        lines += ["", f"{labels['made']}  ", f"{labels['tagger']}: {escape(labels.get(self._report.tagger, self._report.tagger))}{dropped}"]
        return lines

    def _head(self) -> list[tuple[str, str]]:
        report, labels, note = self._report, self._labels, self._note
        rows = [(labels["site"], self._cited(report.site))] if report.site else []
        if report.time:
            rows.append((labels["time"], self._cited(report.time.quote) + (f" = {report.time.normal}" if report.time.normal else "")))
        if note.recorded_on:
            rows.append((labels["recorded_on"], note.recorded_on.isoformat()))
        return [*rows, (labels["source"], escape(note.source.name))]

    def _cited(self, quote: Quote) -> str:
        when = times(quote)
        return escape(quote.text) + (f" ({when})" if when else "")

    def _findings(self) -> list[str]:
        labels = self._labels
        return [f"- **{labels[finding.severity.value]}** {self._cited(finding.quote)}" for finding in self._report.findings]

    def _measurements(self) -> list[str]:
        if not self._report.measurements:
            return []
        labels = self._labels
        lines = [f"| {labels['what']} | {labels['value']} | {labels['said']} |", "|---|---|---|"]
        for one in self._report.measurements:
            what = escape(one.what.text) if one.what else ""
            lines.append(f"| {what} | {escape(amount(one.fact))} | {self._cited(one.quote)} |")
        return lines

    def _actions(self) -> list[str]:
        lines = []
        for action in self._report.actions:
            more = [f"{self._labels['owner']}: {escape(action.owner.text)}"] if action.owner else []
            if action.due:
                normal = f" = {action.due.normal}" if action.due.normal else ""
                more.append(f"{self._labels['due']}: {escape(action.due.quote.text)}{normal}")
            lines.append(f"- [ ] {self._cited(action.quote)}" + (f" [{'; '.join(more)}]" if more else ""))
        return lines
