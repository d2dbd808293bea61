"""Is the bundle that was asked for there already? The same conversion run twice costs a hash, not minutes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from converters.gates import broken_gates
from converters.request import BundleReport
from toolkit.bundle import Bundle
from toolkit.errors import FormatError


def same_bundle(place: Path, key: str, gates: Mapping[str, float], *, verify: bool) -> BundleReport | None:
    """The report of a published bundle, if it is what a new conversion would write and every byte is as its manifest says.

    Args:
        place: OUT/NAME.
        key: The `conversion_key` a new manifest would get.
        gates: Limits its recorded fidelity must hold.
        verify: Whether a bundle without recorded fidelity is not enough.
    """
    try:
        bundle = Bundle.open(place, full_check=True)
    except FormatError:
        return None
    manifest, fidelity = bundle.manifest, bundle.manifest.fidelity
    if manifest.conversion_key != key or (verify and (fidelity is None or broken_gates(fidelity, gates))):
        return None
    return BundleReport(
        name=place.name,
        target=manifest.target,
        recipe=str(manifest.recipe.get("name", "")),
        path=place,
        bytes=bundle.bytes,
        bits_per_weight=manifest.bits_per_weight,
        fidelity=fidelity,
        verdict=fidelity.verdict if fidelity else "not verified",
        is_new=False,
    )
