"""A report as one HTML file: no script, no link to anywhere else, everything said in the note escaped."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path

from mobile_app.report.document import Note
from mobile_app.report.evidence import Quote, Span
from mobile_app.report.labels import amount, heading, load_labels, section_title, times
from mobile_app.report.span_set import SpanSet

_STYLE = Path(__file__).with_name("report.css")


def write_html(note: Note) -> str:
    """The whole file."""
    writer = _Writer(note)
    title = heading(note.template, note.language)
    name = f"{title}: {note.report.title.text}" if note.report.title else title
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!doctype html>\n<html lang="{escape(note.language)}">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{escape(name)}</title>\n'
        f"<style>\n{_STYLE.read_text('utf-8')}</style>\n</head>\n<body>\n<main>\n<h1>{escape(name)}</h1>\n"
        f"{writer.body()}\n</main>\n</body>\n</html>\n"
    )


class _Writer:
    def __init__(self, note: Note) -> None:
        self._note, self._report, self._labels = note, note.report, load_labels(note.language)
        self._spans = SpanSet(one.sentence.span for one in note.report.tagged)
        self._sections: dict[str, Callable[[], str]] = {
            "summary": lambda: self._list(self._report.summary),
            "findings": self._findings,
            "measurements": self._measurements,
            "actions": self._actions,
            "questions": lambda: self._list(self._report.questions),
            "not_placed": lambda: self._list(self._report.not_placed),
        }

    def body(self) -> str:
        note, labels = self._note, self._labels
        parts = [self._head()]
        if note.source.is_truncated:
            parts.append(f'<p class="warning">{escape(labels["truncated"])}</p>')
        for section in note.template.sections:
            found = self._sections[section.shows]()
            if found or section.shows not in ("summary", "not_placed"):
                empty = f'<p class="none">{escape(labels["none"])}</p>'
                parts.append(f"<section>\n<h2>{escape(section_title(section, note.language))}</h2>\n{found or empty}\n</section>")
        dropped = f", {self._report.n_dropped} {labels['dropped']}" if self._report.n_dropped else ""
        tagger = labels.get(self._report.tagger, self._report.tagger)
        parts.append(self._transcript())
        parts.append(f"<footer>{escape(labels['made'])}<br>{escape(labels['tagger'])}: {escape(tagger)}{escape(dropped)}</footer>")
        return "\n".join(parts)

    def _head(self) -> str:
        report, labels, note = self._report, self._labels, self._note
        rows = [(labels["site"], self._cited(report.site))] if report.site else []
        if report.time:
            rows.append((labels["time"], self._cited(report.time.quote) + self._normal(report.time.normal)))
        if note.recorded_on:
            rows.append((labels["recorded_on"], note.recorded_on.isoformat()))
        rows.append((labels["source"], escape(note.source.name)))
        return "<dl>\n" + "\n".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in rows) + "\n</dl>"

    def _normal(self, normal: str) -> str:
        return f" = <time>{escape(normal)}</time>" if normal else ""

    def _cited(self, quote: Quote) -> str:
        return f"{escape(quote.text)} {self._link(quote)}".rstrip()

    def _link(self, quote: Quote) -> str:
        """A link to the sentence that says it, showing when it was said."""
        index = self._spans.holder(Span(quote.span.start, quote.span.start + 1))
        shown = times(quote) or self._labels["evidence"]
        return f'<a class="evidence" href="#s{index}">{escape(shown)}</a>' if index is not None else ""

    def _list(self, quotes: tuple[Quote, ...]) -> str:
        return "<ul>\n" + "\n".join(f"<li>{self._cited(quote)}</li>" for quote in quotes) + "\n</ul>" if quotes else ""

    def _findings(self) -> str:
        rows = [
            f'<li><b class="{finding.severity.value}">{escape(self._labels[finding.severity.value])}</b> {self._cited(finding.quote)}</li>'
            for finding in self._report.findings
        ]
        return "<ul>\n" + "\n".join(rows) + "\n</ul>" if rows else ""

    def _measurements(self) -> str:
        labels = self._labels
        rows = []
        for one in self._report.measurements:
            what = escape(one.what.text) if one.what else ""
            rows.append(f"<tr><td>{what}</td><td>{escape(amount(one.fact))}</td><td>{self._cited(one.quote)}</td></tr>")
        head = "".join(f"<th>{escape(labels[name])}</th>" for name in ("what", "value", "said"))
        return f"<table>\n<tr>{head}</tr>\n" + "\n".join(rows) + "\n</table>" if rows else ""

    def _actions(self) -> str:
        rows = []
        for action in self._report.actions:
            more = [f"{escape(self._labels['owner'])}: {escape(action.owner.text)}"] if action.owner else []
            if action.due:
                more.append(f"{escape(self._labels['due'])}: {escape(action.due.quote.text)}{self._normal(action.due.normal)}")
            detail = f"<br><small>{'; '.join(more)}</small>" if more else ""
            rows.append(f"<li>{self._cited(action.quote)}{detail}</li>")
        return "<ul>\n" + "\n".join(rows) + "\n</ul>" if rows else ""

    def _transcript(self) -> str:
        rows = []
        for index, one in enumerate(self._report.tagged):
            start_s, end_s = self._note.transcript.times(one.sentence.span.start, one.sentence.span.end)
            when = times(Quote("", one.sentence.span, start_s, end_s))
            shown = f" <small>{escape(when)}</small>" if when else ""
            rows.append(f'<p id="s{index}">{escape(one.sentence.text)}{shown}</p>')
        return f"<section>\n<h2>{escape(self._labels['transcript'])}</h2>\n" + "\n".join(rows) + "\n</section>"
