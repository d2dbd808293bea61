"""Sizes and figures with units, read and printed in one place. Stored numbers are always plain bytes and SI units."""

from __future__ import annotations

import math
import re

from toolkit.errors import UsageError

_FACTORS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 10**3, "MB": 10**6}
_BY_LOWER = {name.lower(): factor for name, factor in _FACTORS.items()}
_SIZE = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")


def parse_bytes(text: str | int) -> int:
    """Read a size such as `1.2GiB`, `380 MB` or `1024` into bytes.

    `GB` is refused: half of the field means 10^9 with it and the other half 2^30.

    Raises:
        UsageError: It has no number, its unit is unknown or ambiguous, or it is zero or less.
    """
    match = _SIZE.fullmatch(str(text).strip())
    number = math.inf if match is None else float(match.group(1))
    if match is None or not math.isfinite(number):
        raise _no_size(text, "it has no number that counts bytes: digits, and a point where needed")
    if (factor := _BY_LOWER.get(match.group(2).lower())) is None:
        raise _no_size(text, f"known units are {', '.join(name for name in _FACTORS if name)}; GB is ambiguous (10^9 or 2^30)")
    size = int(number * factor)
    if size <= 0:
        raise UsageError(f"a size of {text!r} leaves nothing to work in", why=f"it is {size} bytes", fix="use 1MiB or more")
    return size


def _no_size(text: str | int, why: str) -> UsageError:
    return UsageError(f"{text!r} is not a size", why=why, fix="write it like 512MiB, 1.2GiB or 300000000")


def format_bytes(size: int) -> str:
    """Print bytes for people: `3.09 GiB`, `79.4 MiB`, `512 B` (binary units, three digits)."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def format_figure(name: str, value: float) -> str:
    """A figure with the unit that ends its name, like `ttft_s`; one that ends with none is a plain number."""
    if name.endswith("_bytes"):
        return format_bytes(round(value))
    if name.endswith("_tokens_per_s"):
        return f"{value:.{0 if value >= 200 else 1}f} tokens/s"
    if name.endswith("_per_s"):
        return f"{value:.1f}/s"
    if name.endswith(("energy_j", "_j_per_token")):
        return f"{value:.3g} J"
    if name.endswith("_c"):
        return f"{value:.1f} °C"
    if name.endswith("_s"):
        return f"{1000 * value:.1f} ms" if abs(value) < 1 else f"{value:.2f} s"
    return f"{value:.4f}"
