"""Errors a user can act on. Every one says what failed, why, and what to do next."""

from __future__ import annotations


def _printable(text: str) -> str:
    """Text that cannot break a line or steer a terminal: names in damaged files may hold any character.

    Line breaks, control and formatting characters and halves of surrogate pairs become backslash escapes.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)


def one_line(error: BaseException) -> str:
    """The kind and text of a foreign exception, in one line of bearable length."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


class ToolkitError(Exception):
    """Base of every error this project raises on purpose.

    Args:
        what: What could not be done, naming the object (one sentence).
        why: The measured cause, with numbers and units. May be empty.
        fix: What to do next, as commands or settings. Never empty.
    """

    exit_code = 1

    def __init__(self, what: str, *, why: str = "", fix: str) -> None:
        self.what, self.why, self.fix = _printable(what), _printable(why), _printable(fix)
        super().__init__("\n".join(filter(None, [self.what, self.why and f"  why: {self.why}", f"  fix: {self.fix}"])))

    def as_json(self) -> dict[str, object]:
        """The object `--json` prints: {"error": {"what", "why", "fix", "code"}}."""
        return {"error": {"what": self.what, "why": self.why, "fix": self.fix, "code": self.exit_code}}


class UsageError(ToolkitError):
    """The request itself cannot be right: an unknown name, a limit of zero, flags that contradict."""

    exit_code = 2


class BudgetError(ToolkitError):
    """The work cannot be done inside the stated memory, disk, energy or thermal budget."""

    exit_code = 3


class FormatError(ToolkitError):
    """A file is not what it says it is: wrong magic, missing tensor, bad checksum."""

    exit_code = 4


class UnsupportedModelError(FormatError):
    """A checkpoint is sound, but this version cannot convert it; the text names what would be needed."""


class BackendUnavailableError(ToolkitError):
    """A backend is known, but its library or its accelerator is not on this device."""

    exit_code = 5


class FidelityError(ToolkitError):
    """A converted model does not answer like its checkpoint: a gate failed, nothing was published."""

    exit_code = 6


class EngineError(ToolkitError):
    """An engine refused or failed while it ran; the text carries the engine's own last message."""


class SourceUnavailableError(ToolkitError):
    """A source of weights cannot be had now: no network, a gated page, a withdrawn file. Another source may do."""
