"""One user's machine for the tests of whole conversions: a cache, an output folder, a small target and its verifier."""

import dataclasses
from pathlib import Path

from converters.pipeline import convert
from converters.request import ConvertRequest, ConvertResult
from tests.converters.small_model import SmallTarget, SmallVerifier, small_parts

ALL = ("fp32", "fp16", "int8", "int4-g32")


class Notes:
    """A Progress that keeps what it was told."""

    def __init__(self) -> None:
        from converters.progress import Silent

        self.texts: list[str] = []
        self.stage = Silent().stage

    def note(self, text: str) -> None:
        self.texts.append(text)


class Desk:
    """One user's machine: a cache, an output folder, and the target and verifier of the last run."""

    def __init__(self, root: Path) -> None:
        self.cache, self.out = root / "cache", root / "out"
        self.target, self.verifier, self.notes = SmallTarget(), SmallVerifier(), Notes()

    def convert(self, *recipes: str, parts: dict | None = None, **request) -> ConvertResult:
        wanted = {"targets": ("small",), "recipes": recipes or ("int8",), "out": self.out} | request
        made = dataclasses.replace(small_parts(self.cache, self.target, verifier=self.verifier), **(parts or {}))
        self.notes = Notes()
        return convert(ConvertRequest("small", **wanted), self.notes, parts=made)

    def fresh(self) -> None:
        """Forget calls and faults, as a new process would."""
        self.target, self.verifier = SmallTarget(), SmallVerifier()

    def published(self) -> list[str]:
        return sorted(path.name for path in self.out.glob("[!.]*"))

    def stages(self) -> list[str]:
        return sorted(path.name.rpartition("-")[0] for path in self.cache.glob("*/*-*") if path.is_dir())
