"""`toolkit inspect`: what a bundle or a checkpoint is, without loading a weight."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolkit.cli.output import print_json, print_rows
from toolkit.manifest import MANIFEST_NAME, Fidelity, FileRecord, Manifest
from toolkit.manifest_reader import load_manifest
from toolkit.plugins import call_plugin
from toolkit.units import format_bytes

_EXAMPLES = """\
examples:
  toolkit inspect bundles/smollm2-135m-instruct-litert-int8
  toolkit inspect model.gguf --json
  toolkit inspect smollm2-135m-instruct
"""
_LONG = ("chat_template",)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `inspect` to the command line."""
    parser = subparsers.add_parser(
        "inspect",
        help="say what a bundle or a checkpoint is",
        description="Say what a bundle, checkpoint folder, file.gguf, hf: or pypi: source or catalog name is, from headers alone.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="X", help="a bundle, or anything `convert` reads")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    path = Path(args.source)
    if args.source and (path / MANIFEST_NAME).exists():
        manifest = load_manifest(path)
        facts = {"kind": "bundle", "path": str(path), **asdict(manifest), "bytes": sum(record.bytes for record in manifest.files)}
        rows = list(bundle_rows(path, manifest))
    else:
        facts = {"kind": "source", **call_plugin("inspect_source", args.source)}
        rows = list(fact_rows(facts))
    if args.json:
        print_json(facts)
    else:
        print_rows(rows)
    return 0


def bundle_rows(path: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """A manifest as the table's rows."""
    yield "bundle", path.resolve().name
    yield "checkpoint", manifest.name
    yield "target, recipe", f"{manifest.target}, {manifest.recipe.get('name', 'unnamed')}"
    yield "bits per weight", f"{manifest.bits_per_weight:.2f}"
    yield "context length", f"{manifest.context_length} tokens"
    yield "chat", "yes, with the checkpoint's template" if manifest.chat else "no: a base model without a chat template"
    yield "tokenizer", str(manifest.tokenizer.get("kind", "unknown"))
    yield "licence", manifest.license.id + (f", accepted {manifest.license.accepted_at}" if manifest.license.accepted_at else "")
    yield "source", manifest.source.uri + (f" @ {manifest.source.revision}" if manifest.source.revision else "")
    yield "fidelity", fidelity_text(manifest.fidelity)
    yield "files", "\n".join(_file_text(path / record.path, record) for record in manifest.files)
    yield "written", manifest.created_at
    yield "by", ", ".join(f"{name} {version}" for name, version in sorted(manifest.tools.items()))


def _file_text(place: Path, record: FileRecord) -> str:
    """One file as the manifest states it, with a word when it plainly is not that file; `verify` compares the bytes."""
    text = f"{record.path}  {format_bytes(record.bytes)}  sha256 {record.sha256[:16]}..."
    if not place.is_file():
        return f"{text}  MISSING HERE"
    return text if place.stat().st_size == record.bytes else f"{text}  OTHER SIZE HERE: {place.stat().st_size} bytes"


def fidelity_text(fidelity: Fidelity | None) -> str:
    """The figures of a bundle beside its checkpoint, in one or two lines."""
    if fidelity is None:
        return "not measured"
    lines = [
        f"{fidelity.verdict}: KL {fidelity.kl_mean:.4f} nats/token (99th percentile {fidelity.kl_p99:.3f}), "
        f"top-1 {fidelity.top1_agreement:.1%}, perplexity x {fidelity.perplexity_ratio:.4f}, on {fidelity.n_tokens} tokens"
    ]
    if fidelity.word_error_rate is not None and fidelity.reference_word_error_rate is not None:
        lines.append(f"word error rate {fidelity.word_error_rate:.3f}, the checkpoint's {fidelity.reference_word_error_rate:.3f}")
    if fidelity.gates:
        lines.append("gates: " + ", ".join(f"{name} {limit:g}" for name, limit in sorted(fidelity.gates.items())))
    return "\n".join(lines)


def fact_rows(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested facts as rows `a.b  value`; sizes are printed with a unit, long texts by their length."""
    for name, value in facts.items():
        label = prefix + (name.replace("_", " ") if name.isidentifier() else name)
        if isinstance(value, Mapping):
            yield from fact_rows(value, prefix=f"{label}, ")
        elif name in _LONG and isinstance(value, str):
            yield label, f"{len(value)} characters"
        elif name.endswith("bytes") and isinstance(value, int):
            yield label, format_bytes(value)
        elif isinstance(value, list | tuple):
            yield label, ", ".join(map(str, value)) or "none"
        elif isinstance(value, float):
            yield label, f"{value:.2f}"
        elif value is not None:
            yield label, {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
