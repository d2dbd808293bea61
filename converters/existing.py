"""Is the bundle that was asked for there already? The same conversion run twice costs a hash, not minutes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converters.gates import broken_gates
from converters.request import BundleReport
from toolkit.cache import sha256_file
from toolkit.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Fidelity


def same_bundle(place: Path, key: str, gates: Mapping[str, float], *, verify: bool) -> BundleReport | None:
    """The report of a published bundle, if it is what a new conversion would write, byte for byte as its manifest says.

    Args:
        place: OUT/NAME.
        key: The `conversion_key` a new manifest would get.
        gates: Limits its recorded fidelity must hold.
        verify: Whether a bundle without recorded fidelity is not enough.
    """
    try:
        manifest = _manifest(place)
        fidelity = Fidelity(**manifest["fidelity"]) if manifest["fidelity"] else None
        is_same = manifest["conversion_key"] == key and all(_is_whole(place, record) for record in manifest["files"])
        if not is_same or (verify and (fidelity is None or broken_gates(fidelity, gates))):
            return None
        return BundleReport(
            name=place.name,
            target=manifest["target"],
            recipe=manifest["recipe"]["name"],
            path=place,
            bytes=bundle_bytes(place),
            bits_per_weight=float(manifest["bits_per_weight"]),
            fidelity=fidelity,
            verdict=fidelity.verdict if fidelity else "not verified",
            is_new=False,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def bundle_bytes(folder: Path) -> int:
    """Bytes of all files of a bundle, its manifest included."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _manifest(place: Path) -> dict[str, Any]:
    path = place / MANIFEST_NAME
    if path.stat().st_size > MAX_MANIFEST_BYTES:
        raise ValueError("too large to be a manifest")
    manifest = json.loads(path.read_bytes())
    if not isinstance(manifest, dict):
        raise ValueError("a manifest is an object")
    return manifest


def _is_whole(place: Path, record: Mapping[str, Any]) -> bool:
    path = place / record["path"]
    return bool(path.stat().st_size == record["bytes"] and sha256_file(path) == record["sha256"])
