"""Writes a report's folder. `report.json` is put there last: a folder that has one holds a whole report.

OUT/report.json, report.md, report.html, transcript.json   one report
OUT/.writing.<pid>/                                        work of a live process, or a dead one's leftover
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mobile_app.report.document import Note, as_json
from mobile_app.report.html import write_html
from mobile_app.report.markdown import write_markdown
from mobile_app.whole_file import sync_file, sync_folder
from toolkit.cache import FULL_ERRNOS
from toolkit.errors import BudgetError, ToolkitError, UsageError
from toolkit.json_depth import check_json_depth

REPORT = "report.json"
FILES = ("transcript.json", "report.md", "report.html")
_WRITING = ".writing."


def report_files(note: Note) -> dict[str, bytes]:
    """Name -> content of every file of a report; `report.json` names the others with their SHA-256."""
    texts = {"transcript.json": _json(note.transcript.as_json()), "report.md": write_markdown(note), "report.html": write_html(note)}
    files = {name: texts[name].encode("utf-8") for name in FILES}
    document = as_json(note) | {"files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}}
    return files | {REPORT: _json(document).encode("utf-8")}


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def publish(folder: Path, note: Note, *, force: bool = False) -> bool:
    """Write a report; returns False if this very report is there already.

    Args:
        folder: OUT. Made if it is missing; other files in it are left alone.
        note: What to write.
        force: Replace another report.

    Raises:
        UsageError: Another report is there, or the path cannot be a folder.
        BudgetError: The disk is full.
    """
    files = report_files(note)
    check_folder(folder)
    if is_there(folder, files):
        return False
    if (folder / REPORT).exists() and not force:
        raise another_report(folder, "its recording, transcript, template or options are not these")
    try:
        _replace(folder, files)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return True


def another_report(folder: Path, why: str) -> UsageError:
    """The refusal to replace a report without being told to."""
    return UsageError(f"{folder} holds another report", why=why, fix="give another folder to --out, or replace it with --force")


def published(folder: Path) -> dict[str, Any] | None:
    """What a folder's `report.json` says, if the files it names are whole; else None."""
    try:
        raw = (folder / REPORT).read_text("utf-8")
        check_json_depth(raw)
        document = json.loads(raw)
        hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES}
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and document.get("files") == hashes else None


def check_folder(folder: Path) -> None:
    """Make the folder and prove that it can be written to; before minutes of work, not after.

    Raises:
        UsageError: It cannot be a folder.
        ToolkitError: It cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{_WRITING}*"):
            if not _is_alive(left.name.removeprefix(_WRITING)):
                shutil.rmtree(left, ignore_errors=True)
        probe = folder / f"{_WRITING}{os.getpid()}"
        probe.mkdir(exist_ok=True)
        probe.rmdir()
    except OSError as error:
        raise _unwritable(folder, error) from error


def is_there(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Whether the folder holds exactly these files."""
    try:
        return all((folder / name).read_bytes() == content for name, content in files.items())
    except OSError:
        return False


def _replace(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write everything beside, then move it in: killed before the last move, there is no `report.json`."""
    work = folder / f"{_WRITING}{os.getpid()}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        for name, content in files.items():
            (work / name).write_bytes(content)
            sync_file(work / name)
        (folder / REPORT).unlink(missing_ok=True)
        for name in (*FILES, REPORT):
            os.replace(work / name, folder / name)
        sync_folder(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _is_alive(pid: str) -> bool:
    if not pid.isdigit() or int(pid) == os.getpid() or os.name == "nt":  # there, asking after a process would end it
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _unwritable(folder: Path, error: OSError) -> ToolkitError:
    why = f"{error.filename or folder}: {error.strerror}"
    if error.errno in FULL_ERRNOS:
        fix = "free some space and run it again; the recording is untouched"
        return BudgetError(f"the report does not fit into {folder}", why=why, fix=fix)
    return UsageError(f"{folder} cannot hold a report", why=why, fix="give another folder to --out")
