"""Device profiles as TOML, for planning on one machine what another will run. Format: docs/formats/device.md."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from toolkit.device.accelerators import Accelerator
from toolkit.device.cores import Cores
from toolkit.device.isa import NAMES
from toolkit.device.profile import Device
from toolkit.errors import FormatError, ToolkitError
from toolkit.free_memory import FreeMemory
from toolkit.units import parse_bytes

MAX_BYTES = 64 * 1024
SYSTEMS = ("linux", "android", "darwin", "ios", "windows")
KINDS = ("gpu", "npu")
_KNOWN = {"name", "system", "machine", "ram", "free_ram", "cores", "big_cores", "isa", "accelerators"}


class _Refusal(Exception):
    """What is wrong with one field; `read_device` adds the file's name and the way out."""


def load_device(path: Path) -> Device:
    """Read a device profile.

    Raises:
        FormatError: The file is missing, no TOML, or says something impossible; the text names the field.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise FormatError(
            f"there is no device profile at {path}", why=error.strerror or str(error), fix="give a TOML file (docs/formats/device.md)"
        ) from error
    return read_device(data, origin=str(path))


def read_device(data: bytes, *, origin: str = "device.toml") -> Device:
    """Check the text of a device profile and return it. `origin` names it in errors.

    Raises:
        FormatError: As `load_device`.
    """
    try:
        return _device(_document(data))
    except _Refusal as refusal:
        fix = "mend it (docs/formats/device.md), or describe the device on the command line: --ram 4GiB --cores 4"
        raise FormatError(f"{origin} describes no device", why=str(refusal), fix=fix) from refusal


def _document(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        raise _Refusal(f"it is larger than {MAX_BYTES} bytes")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _Refusal(f"it is no TOML: {error}") from error


def _device(document: dict[str, Any]) -> Device:
    if unknown := sorted(set(document) - _KNOWN):
        raise _Refusal(f"it has the unknown field {unknown[0]!r}; known are {', '.join(sorted(_KNOWN))}")
    total = _size("ram", document.get("ram"))
    free = _size("free_ram", document["free_ram"]) if "free_ram" in document else total
    if free > total:
        raise _Refusal("free_ram is more than ram")
    n_cores = _count("cores", document.get("cores"))
    n_big = _count("big_cores", document.get("big_cores", n_cores))
    if n_big > n_cores:
        raise _Refusal(f"big_cores is {n_big}, but cores is {n_cores}")
    isa = None if "isa" not in document else tuple(_word("isa", item, NAMES) for item in _list("isa", document["isa"]))
    return Device(
        name=_text("name", document.get("name", "unnamed device")),
        system=_word("system", document.get("system", "linux"), SYSTEMS),
        machine=_text("machine", document.get("machine", "aarch64")),
        total_memory_bytes=total,
        free_memory=FreeMemory(free, "free_ram of the device file" if "free_ram" in document else "ram of the device file"),
        cores=Cores(n_cores, n_cores, n_big),
        isa=isa,
        accelerators=tuple(_accelerator(item) for item in _list("accelerators", document.get("accelerators", []))),
    )


def _size(name: str, value: Any) -> int:
    if value is None:
        raise _Refusal(f"it lacks {name}")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _Refusal(f'{name} must be a size like "4GiB"')
    try:
        size = parse_bytes(value)
    except ToolkitError as error:
        raise _Refusal(f"{name}: {error.what}; {error.why}") from error
    if size > 2**50:
        raise _Refusal(f"{name} is larger than any device's")
    return size


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
        raise _Refusal(f"{name} must be a whole number from 1 to 1024")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 1 <= len(value) <= 200:
        raise _Refusal(f"{name} must be a printable text")
    return value


def _word(name: str, value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        raise _Refusal(f"{name} {str(value)[:40]!r} is none of {', '.join(known)}")
    return str(value)


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > 64:
        raise _Refusal(f"{name} must be a list")
    return value


def _accelerator(value: Any) -> Accelerator:
    """Written `gpu` or `gpu: Mali-G715`."""
    kind, _, name = _text("accelerators", value).partition(":")
    return Accelerator(_word("accelerators", kind.strip(), KINDS), name.strip() or kind.strip())
