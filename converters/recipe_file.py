"""Reading a recipe's TOML file. Every refusal names the file, the line and the field."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from converters.gates import GATES
from converters.recipe import Override, Promotion, Recipe, undecodable
from converters.rule import FLOAT_BITS, Activations, Algorithm, Granularity, Rule, TensorClass
from toolkit.errors import UsageError

MAX_RECIPE_BYTES = 2**16
MAX_OVERRIDES = 1000
MAX_INT8_ROWS = 2**20
GROUP_SIZES = (16, 32, 64, 128, 256)
_RULE_KEYS = ("bits", "algorithm", "granularity", "group_size", "symmetric", "activations", "int8_rows")
_Closed = TypeVar("_Closed", bound=StrEnum)


class _Source:
    """A recipe's text, which knows on which line a field stands."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.lines = path, text.splitlines()

    def line_of(self, table: str, key: str) -> int | None:
        current = ""
        n_seen: dict[str, int] = {}
        for number, line in enumerate(self.lines, start=1):
            if header := re.fullmatch(r"\s*(\[?)\[\s*([\w.-]+)\s*\]\]?\s*(?:#.*)?", line):
                current = header[2]
                if header[1]:  # an array's tables are told apart by their index
                    n_seen[current] = n_seen.get(current, -1) + 1
                    current = f"{current}.{n_seen[current]}"
                if current == f"{table}.{key}".strip("."):
                    return number
            elif current == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                return number
        return None

    def refuse(self, table: str, key: str, why: str, fix: str) -> NoReturn:
        line = self.line_of(table, key) or self.line_of(*table.rpartition(".")[::2])
        where = f"{self.path.name} line {line}" if line else self.path.name
        raise UsageError(f"recipe {where}: {f'{table}.{key}'.strip('.')} cannot be used", why=why, fix=fix)


def read_recipe(path: Path) -> Recipe:
    """Read and check one recipe file.

    Raises:
        UsageError: It cannot be read, is no TOML, or holds an unknown, missing or wrong value.
    """
    try:
        if path.stat().st_size > MAX_RECIPE_BYTES:
            raise UsageError(f"recipe {path} is too large", why=f"more than {MAX_RECIPE_BYTES} bytes", fix="check the path")
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except OSError as error:
        raise UsageError(
            f"recipe {path} cannot be read", why=error.strerror or str(error), fix="check the path given to --recipe"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"recipe {path} is not TOML", why=str(error), fix="compare it with a file of converters/recipes") from error
    return _recipe(data, _Source(path, text))


def _recipe(data: Mapping[str, Any], source: _Source) -> Recipe:
    _only_known(data, "", ("name", "description", "rules", "overrides", "promotion", "gates"), source)
    name, description = _string(data, "name", source), _string(data, "description", source)
    tables = _table(data, "", "rules", source)
    _only_known(tables, "rules", tuple(TensorClass), source)
    rules = {kind: _rule(_table(tables, "rules", kind, source), f"rules.{kind}", source) for kind in TensorClass}
    recipe = Recipe(
        name=name,
        description=description,
        rules=rules,
        gates=_gates(data, source),
        origin=str(source.path),
        overrides=_overrides(data, source),
        promotion=_promotion(data, source),
    )
    if why := undecodable(recipe):
        source.refuse("", "name", f"{name!r} does not decode: {why}", "rename the recipe after what its rules do")
    return recipe


def _overrides(data: Mapping[str, Any], source: _Source) -> tuple[Override, ...]:
    entries = data.get("overrides", [])
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not all(isinstance(entry, Mapping) for entry in entries):
        source.refuse("", "overrides", "it is no list of tables", "write [[overrides]] above each")
    if len(entries) > MAX_OVERRIDES:
        source.refuse("", "overrides", f"{len(entries)} of them; {MAX_OVERRIDES} is the most", "let one expression match many tensors")
    made = []
    for index, entry in enumerate(entries):
        where = f"overrides.{index}"
        pattern = entry.get("tensors")
        try:
            if not isinstance(pattern, str) or not pattern:
                raise ValueError(f"{pattern!r} is no text" if "tensors" in entry else "it is missing")
            re.compile(pattern)
        except (ValueError, re.error, RecursionError, OverflowError) as error:
            source.refuse(where, "tensors", str(error), "write a regular expression that matches whole Hugging Face tensor names")
        rule = _rule({key: value for key, value in entry.items() if key != "tensors"}, where, source)
        made.append(Override(pattern, rule))
    return tuple(made)


def _promotion(data: Mapping[str, Any], source: _Source) -> Promotion | None:
    if "promotion" not in data:
        return None
    table = _table(data, "", "promotion", source)
    size = table.get("bits_per_weight")
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not 1 <= size <= 32:
        source.refuse("promotion", "bits_per_weight", f"{size!r} is no number from 1 to 32", "write bits_per_weight = 5.0")
    rule = _rule({key: value for key, value in table.items() if key != "bits_per_weight"}, "promotion", source)
    return Promotion(float(size), rule)


def _rule(table: Mapping[str, Any], where: str, source: _Source) -> Rule:
    _only_known(table, where, _RULE_KEYS, source)
    if table.get("algorithm") == Algorithm.KEEP:
        for key in sorted(set(table) - {"algorithm"}):
            source.refuse(where, key, "keep takes the source's own codes and scales", f"remove {key}")
        return Rule(bits=None, algorithm=Algorithm.KEEP)
    bits = table.get("bits")
    if type(bits) is not int or not (bits in FLOAT_BITS or 2 <= bits <= 8):
        source.refuse(
            where, "bits", f"{bits!r} is no bit width" if "bits" in table else "it is missing", "use 16 or 32 (floats) or 2 to 8 (integers)"
        )
    algorithm = _closed(Algorithm, table, where, "algorithm", source)
    if (algorithm is Algorithm.CAST) != (bits in FLOAT_BITS):
        source.refuse(where, "algorithm", f"{algorithm} does not go with {bits} bits", "use cast for 16 and 32 bits, and only there")
    if algorithm is Algorithm.CAST:
        for key in sorted(set(table) - {"bits", "algorithm"}):
            source.refuse(where, key, "floats are cast, they have no scales", f"remove {key}")
        return Rule(bits=bits, algorithm=algorithm)
    granularity = _closed(Granularity, table, where, "granularity", source)
    symmetric = table.get("symmetric")
    if not isinstance(symmetric, bool):
        source.refuse(where, "symmetric", f"{symmetric!r} is not true or false", "write symmetric = true")
    activations = _closed(Activations, table, where, "activations", source)
    group_size, int8_rows = _group_size(table, where, granularity, source), _int8_rows(table, where, bits, source)
    return Rule(bits, algorithm, granularity, group_size, symmetric, activations, int8_rows)


def _int8_rows(table: Mapping[str, Any], where: str, bits: int, source: _Source) -> int | None:
    if "int8_rows" not in table:
        return None
    n_rows = table["int8_rows"]
    if where not in (f"rules.{TensorClass.EMBEDDING}", f"rules.{TensorClass.HEAD}"):
        source.refuse(where, "int8_rows", "only the rows of a table are tokens", "remove it")
    if bits >= 8:
        source.refuse(where, "int8_rows", f"all rows have {bits} bits", "remove it")
    if type(n_rows) is not int or not 1 <= n_rows <= MAX_INT8_ROWS:
        source.refuse(where, "int8_rows", f"{n_rows!r} is no number of rows", f"use 1 to {MAX_INT8_ROWS}")
    return n_rows


def _group_size(table: Mapping[str, Any], where: str, granularity: Granularity, source: _Source) -> int | None:
    group_size = table.get("group_size")
    if granularity is not Granularity.BLOCKWISE:
        if group_size is not None:
            source.refuse(where, "group_size", f"granularity {granularity} has no groups", 'remove it, or use granularity = "blockwise"')
        return None
    if type(group_size) is not int or group_size not in GROUP_SIZES:
        source.refuse(where, "group_size", f"{group_size!r} is no group size", f"use one of {', '.join(map(str, GROUP_SIZES))}")
    return group_size


def _gates(data: Mapping[str, Any], source: _Source) -> dict[str, float]:
    gates = _table(data, "", "gates", source) if "gates" in data else {}
    _only_known(gates, "gates", tuple(GATES), source)
    for name, limit in gates.items():
        if type(limit) not in (int, float) or not (math.isfinite(limit) and limit >= 0):
            source.refuse("gates", name, f"{limit!r} is no limit", "use a number of 0 or more")
    return {name: float(limit) for name, limit in gates.items()}


def _only_known(table: Mapping[str, Any], where: str, known: tuple[str, ...], source: _Source) -> None:
    for key in table:
        if key not in known:
            source.refuse(where, key, "it is not a field of a recipe", f"known fields here are {', '.join(known)}")


def _string(data: Mapping[str, Any], key: str, source: _Source) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value.strip():
        source.refuse("", key, f"{value!r} is no text" if key in data else "it is missing", f'write {key} = "..."')
    return value


def _table(data: Mapping[str, Any], where: str, key: str, source: _Source) -> Mapping[str, Any]:
    value = data.get(key)
    if not isinstance(value, Mapping):
        source.refuse(where, key, "it must be a table" if key in data else "it is missing", f"add a [{f'{where}.{key}'.strip('.')}] table")
    return value


def _closed(kind: type[_Closed], table: Mapping[str, Any], where: str, key: str, source: _Source) -> _Closed:
    value = table.get(key)
    if value not in tuple(kind):
        why = f"{value!r} is not known" if key in table else "it is missing"
        source.refuse(where, key, why, f"use one of {', '.join(kind)}")
    return kind(value)
