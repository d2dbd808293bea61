"""Licences that must be accepted before use: asked once, remembered with the time, stated in every manifest."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from toolkit.cache import config_directory, config_root, locked, write_error
from toolkit.catalog import LicenseTerms, load_catalog
from toolkit.errors import FormatError, UsageError
from toolkit.manifest import LicenseRecord

_FILE_NAME = "accepted-licenses.json"


def accepted_at(license_id: str) -> str | None:
    """When this user accepted the licence (ISO 8601, UTC), or None."""
    return _accepted(config_root() / _FILE_NAME).get(license_id)


def agree(terms: LicenseTerms, accept: str | None, *, source: str) -> LicenseRecord:
    """State the licence of `source`, recording its acceptance the first time `accept` is its id.

    Args:
        terms: The licence.
        accept: The id the user passed as `--accept-license`, if any.
        source: What is being fetched, for the error's command.

    Raises:
        UsageError: `accept` names a licence nobody asks for, or the licence must be accepted and is not.
    """
    _check_known(accept)
    if not terms.must_accept:
        return LicenseRecord(terms.id, terms.url)
    when = accepted_at(terms.id)
    if when is None and terms.id == accept:
        when = _record(terms.id)
    if when is None:
        raise UsageError(
            f"{source} may be used only under the licence {terms.id!r}, which was not accepted yet",
            why=f"its terms are at {terms.url}",
            fix=f"read them; if you agree: toolkit models pull {source} --accept-license {terms.id}",
        )
    return LicenseRecord(terms.id, terms.url, when)


def _check_known(license_id: str | None) -> None:
    known = [terms.id for terms in load_catalog().licenses.values() if terms.must_accept]
    if license_id is not None and license_id not in known:
        raise UsageError(
            f"--accept-license {license_id}: no licence of that name asks for acceptance",
            why=f"those that do: {', '.join(known)}",
            fix=f"--accept-license {known[0]}, or leave it out",
        )


def _accepted(path: Path) -> dict[str, str]:
    try:
        stored = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} cannot be read", why=str(error), fix=f"delete it and accept again: rm {path}") from error
    if not isinstance(stored, dict) or not all(isinstance(when, str) for when in stored.values()):
        raise FormatError(
            f"{path} is not a table of licence and time",
            why=f"it holds {str(stored)[:80]!r}",
            fix=f"delete it and accept again: rm {path}",
        )
    return stored


def _record(license_id: str) -> str:
    path = config_directory() / _FILE_NAME
    when = datetime.now(UTC).isoformat(timespec="seconds")
    with locked(path.with_suffix(".lock")):
        stored = _accepted(path)
        if license_id in stored:
            return stored[license_id]
        partial = path.with_suffix(f".{os.getpid()}.partial")
        try:
            partial.write_text(json.dumps({**stored, license_id: when}, indent=2, sort_keys=True) + "\n", "utf-8")
            partial.replace(path)
        except OSError as error:
            raise write_error(path, error) from error
    return when
