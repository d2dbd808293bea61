"""The table of variables of a CTranslate2 `model.bin`, read and proven before a value is touched.

Layout (version 6, little-endian): version u32, spec name, spec revision u32, number of variables u32; for each variable its
name, rank u8, dimensions u32 each, type u8, size in bytes u32, values; then the number of aliases u32 and for each alias
its name and the variable it stands for. A name is its length u16, then UTF-8 ending in a zero byte that the length counts.

Every count and size is checked against the bytes that are left before anything is allocated.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from converters.read.byte_cursor import ByteCursor, mapped
from toolkit.errors import UnsupportedModelError

VERSION = 6
MAX_VARIABLES = 100_000
MAX_NAME_BYTES = 1024
MAX_RANK = 8
# type number -> (name, bytes of a value)
TYPES = {0: ("float32", 4), 1: ("int8", 1), 2: ("int16", 2), 3: ("int32", 4), 4: ("float16", 2), 5: ("bfloat16", 2)}
_KIND = "CTranslate2 model"
_MIN_HEADER_BYTES = 4 + 2 + 2 + 4 + 4
_MIN_VARIABLE_BYTES = 2 + 2 + 1 + 1 + 4
_MIN_ALIAS_BYTES = 2 * (2 + 2)
# Scalars and the few numbers of a spec are kept; anything larger stays in the file.
SMALL_BYTES = 16


@dataclass(frozen=True)
class Variable:
    """One variable: shape outermost first, and its values as an extent of the file. `small` holds values of up to 16 bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    n_bytes: int
    small: bytes | None = None


@dataclass(frozen=True)
class Ctranslate2Header:
    """What a model.bin says about itself. `aliases` maps a name to the variable that holds its values."""

    spec_name: str
    spec_revision: int
    variables: dict[str, Variable]
    aliases: dict[str, str]
    file_bytes: int


def is_ctranslate2(path: Path) -> bool:
    """Whether a folder holds a CTranslate2 model: a `model.bin` that begins with a version number and a spec's name."""
    try:
        with (path / "model.bin").open("rb") as stream:
            start = stream.read(64)
    except OSError:
        return False
    if len(start) < 8:
        return False
    version, length = struct.unpack("<IH", start[:6])
    return 1 <= version <= 64 and 2 <= length <= 58 and start[6 : 5 + length].isalnum() and start[5 + length] == 0


def read_ctranslate2_header(path: Path) -> Ctranslate2Header:
    """Read and check the table of `path`; values are skipped.

    Raises:
        FormatError: Empty, truncated, longer than its table, or a count, length, type, name or size that cannot be true.
        UnsupportedModelError: Another version of the format.
    """
    with mapped(path, _KIND, least_bytes=_MIN_HEADER_BYTES) as data:
        return _Cursor(path, _KIND, data).header()


class _Cursor(ByteCursor):
    """A position in the file."""

    def header(self) -> Ctranslate2Header:
        version = self.number("I", 4)
        if version != VERSION:
            raise UnsupportedModelError(
                f"{self.path.name} is version {version} of the CTranslate2 format",
                why=f"version {VERSION} is read",
                fix="convert the model again with a current ct2-transformers-converter, or give the Hugging Face checkpoint",
            )
        spec_name, revision = self.name(), self.number("I", 4)
        variables: dict[str, Variable] = {}
        for _ in range(self.count("variables", _MIN_VARIABLE_BYTES)):
            variable = self.variable()
            if variable.name in variables:
                raise self.fail(f"variable {variable.name} appears twice")
            variables[variable.name] = variable
        aliases = self.aliases(variables)
        if self.position != self.file_bytes:
            raise self.fail(f"{self.file_bytes - self.position} bytes follow the last alias")
        return Ctranslate2Header(spec_name, revision, variables, aliases, self.file_bytes)

    def count(self, what: str, record_bytes: int) -> int:
        count: int = self.number("I", 4)
        if count > MAX_VARIABLES or count * record_bytes > self.file_bytes - self.position:
            raise self.fail(f"it claims {count} {what}, {self.file_bytes - self.position} bytes are left")
        return count

    def name(self) -> str:
        length = self.number("H", 2)
        if not 2 <= length <= MAX_NAME_BYTES:
            raise self.fail(f"a name of {length} bytes; 2 to {MAX_NAME_BYTES} are allowed")
        raw = self.take(length)
        try:
            text = raw[:-1].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail("a name that is not UTF-8") from error
        if raw[-1] != 0 or "\0" in text:
            raise self.fail("a name that does not end in one zero byte")
        return text

    def variable(self) -> Variable:
        name, rank = self.name(), self.number("B", 1)
        if rank > MAX_RANK:
            raise self.fail(f"variable {name} has {rank} dimensions; at most {MAX_RANK} are allowed")
        shape = struct.unpack(f"<{rank}I", self.take(4 * rank))
        kind, n_bytes = self.number("B", 1), self.number("I", 4)
        if kind not in TYPES:
            raise self.fail(f"variable {name} has the unknown type {kind}")
        dtype, size = TYPES[kind]
        for dimension in shape:
            size *= dimension
        if size != n_bytes or n_bytes == 0:
            raise self.fail(f"variable {name} of shape {shape} as {dtype} takes {size} bytes, it claims {n_bytes}")
        offset = self.position
        self.skip(n_bytes)
        small = self.data[offset : offset + n_bytes] if n_bytes <= SMALL_BYTES else None
        return Variable(name, shape, dtype, offset, n_bytes, small)

    def aliases(self, variables: dict[str, Variable]) -> dict[str, str]:
        aliases: dict[str, str] = {}
        for _ in range(self.count("aliases", _MIN_ALIAS_BYTES)):
            alias, target = self.name(), self.name()
            if alias in variables or alias in aliases:
                raise self.fail(f"alias {alias} appears twice")
            if target not in variables:
                raise self.fail(f"alias {alias} stands for {target}, which is not there")
            aliases[alias] = target
        return aliases
