from __future__ import annotations

import json
import threading
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from toolkit.catalog import LicenseTerms
from toolkit.errors import FormatError, UsageError
from toolkit.licenses import accepted_at, agree
from toolkit.manifest import LicenseRecord

GEMMA = LicenseTerms("gemma", "https://ai.google.dev/gemma/terms", must_accept=True)
MIT = LicenseTerms("MIT", "https://opensource.org/license/mit")


def test_an_open_licence_needs_no_acceptance_and_leaves_no_file(own_folders: Path) -> None:
    assert agree(MIT, None, source="m") == LicenseRecord("MIT", MIT.url)
    assert not (own_folders / "config").exists()


def test_a_licence_that_was_not_accepted_is_refused_with_its_page_and_the_command(own_folders: Path) -> None:
    with pytest.raises(UsageError) as caught:
        agree(GEMMA, None, source="gemma-3-270m")
    assert GEMMA.url is not None
    assert GEMMA.url in caught.value.why
    assert caught.value.fix.endswith("toolkit models pull gemma-3-270m --accept-license gemma")
    assert caught.value.exit_code == 2


def test_acceptance_is_asked_once_and_its_time_is_kept(own_folders: Path) -> None:
    first = agree(GEMMA, "gemma", source="gemma-3-270m")
    assert first.accepted_at is not None
    assert datetime.fromisoformat(first.accepted_at).utcoffset() == timedelta(0)
    assert agree(GEMMA, None, source="gemma-3-1b-it") == first
    assert agree(GEMMA, "gemma", source="gemma-3-1b-it") == first
    assert accepted_at("gemma") == first.accepted_at
    assert accepted_at("MIT") is None


@pytest.mark.parametrize("license_id", ["MIT", "Gemma ", "all", ""])
def test_accepting_what_nobody_asks_for_is_refused(own_folders: Path, license_id: str) -> None:
    with pytest.raises(UsageError, match="no licence of that name"):
        agree(GEMMA, license_id, source="gemma-3-270m")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"gemma": 1}', b"\xff\xfe"])
def test_a_damaged_record_of_acceptances_is_no_acceptance(own_folders: Path, content: bytes) -> None:
    (own_folders / "config").mkdir()
    (own_folders / "config" / "accepted-licenses.json").write_bytes(content)
    with pytest.raises(FormatError, match=r"accepted-licenses\.json"):
        agree(GEMMA, None, source="gemma-3-270m")


def test_two_acceptances_at_once_agree_on_one_time_and_keep_the_rest(own_folders: Path) -> None:
    path = own_folders / "config" / "accepted-licenses.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"other": "2020-01-01T00:00:00+00:00"}))
    records: list[LicenseRecord] = []
    threads = [threading.Thread(target=lambda: records.append(agree(GEMMA, "gemma", source="m"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(records) == 4
    assert len(set(records)) == 1
    assert set(json.loads(path.read_text())) == {"gemma", "other"}
