from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.toolkit.small_manifest import small_bundle
from toolkit.backends import BACKENDS, backend_for, load_backend
from toolkit.backends.base import Message, Sampling, StreamEnd, StreamEvent
from toolkit.backends.litert import BACKEND, cache_dir
from toolkit.backends.opening import refused_files
from toolkit.bundle import Bundle
from toolkit.cache import CACHE_VARIABLE
from toolkit.errors import BackendUnavailableError, EngineError, UsageError


@pytest.fixture
def bundle(tmp_path: Path, own_folders: Path) -> Bundle:
    return Bundle.open(small_bundle(tmp_path / "bundle"))


def test_every_backend_loads_and_runs_some_target() -> None:
    for name in BACKENDS:
        backend = load_backend(name)
        assert backend.name == name and backend.targets
    assert backend_for("litert") == "litert"
    with pytest.raises(UsageError, match="known: litert"):
        load_backend("nope")


def test_without_the_package_the_error_names_the_extra(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litert_lm", None)
    with pytest.raises(BackendUnavailableError) as caught:
        BACKEND.open_engine(bundle, context_length=64, threads=1)
    assert caught.value.exit_code == 5 and "ondevice-toolkit[litert]" in caught.value.fix


def test_a_library_that_does_not_load_here_says_why(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    litert_lm = pytest.importorskip("litert_lm", reason="pip install 'ondevice-toolkit[litert]'")

    def refuse(severity: Any) -> None:
        raise OSError("cannot allocate memory in static TLS block")

    monkeypatch.setattr(litert_lm, "set_min_log_severity", refuse)
    with pytest.raises(BackendUnavailableError, match="static TLS") as caught:
        BACKEND.open_engine(bundle, context_length=64, threads=1)
    assert platform.machine() in caught.value.why


def test_memory_that_is_short_is_not_the_files_fault(bundle: Bundle) -> None:
    for error, exit_code, way_out in ((MemoryError("8 GiB"), 1, "--context"), (RuntimeError("no magic"), 4, "--to litert --force")):
        refused = refused_files(bundle, error, by="LiteRT")
        assert refused.exit_code == exit_code and way_out in refused.fix and str(error) in refused.why


def test_weights_are_cached_apart_for_each_cpu_and_bundle(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Bundle.open(small_bundle(tmp_path / "other", files=bundle.manifest.files[:1]))
    here = cache_dir(bundle)
    assert Path(here).is_dir() and here == cache_dir(bundle) != cache_dir(other)
    monkeypatch.setattr("toolkit.backends.litert._cpu_model", lambda: "another CPU")
    assert cache_dir(bundle) != here


def test_a_cache_folder_that_is_read_only_or_in_the_way_is_gone_without(
    bundle: Bundle, own_folders: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here = cache_dir(bundle)
    monkeypatch.setattr("os.access", lambda path, mode: str(path) != here)
    assert cache_dir(bundle) == ":nocache"
    monkeypatch.undo()
    monkeypatch.setenv(CACHE_VARIABLE, str(own_folders / "file"))
    (own_folders / "file").write_text("in the way")
    assert cache_dir(bundle) == ":nocache"
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "going on without a cache of repacked weights, slower and in more memory"
    ] * 2


def test_on_a_full_disk_only_a_cache_that_is_whole_is_used(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    here = cache_dir(bundle)
    full = shutil.disk_usage(here)._replace(free=2**20)
    monkeypatch.setattr("shutil.disk_usage", lambda path: full)
    assert cache_dir(bundle) == ":nocache" and BACKEND.is_first_start(bundle)
    Path(here, "whole").touch()
    assert cache_dir(bundle) == here


class FakeLibrary:
    """Calls back with scripted chunks: (error, bytes, is_final)."""

    def __init__(self, chunks: list[tuple[bytes | None, bytes | None, bool]]) -> None:
        self.chunks, self.n_inputs = chunks, 0

    def litert_lm_input_data_create(self, kind: int, data: bytes, size: int) -> int:
        self.n_inputs += 1
        return 1

    def litert_lm_input_data_delete(self, pointer: int) -> None:
        self.n_inputs -= 1

    def litert_lm_session_generate_content_stream(self, session: Any, inputs: Any, n: int, callback: Any, data: Any) -> int:
        for index in range(len(self.chunks)):
            callback(None, index + 1)
        return 0 if self.chunks else 3

    def litert_lm_stream_chunk_get_error(self, chunk: int) -> bytes | None:
        return self.chunks[chunk - 1][0]

    def litert_lm_stream_chunk_get_text(self, chunk: int) -> bytes | None:
        return self.chunks[chunk - 1][1]

    def litert_lm_stream_chunk_is_final(self, chunk: int) -> bool:
        return self.chunks[chunk - 1][2]


def streamed(*chunks: tuple[bytes | None, bytes | None, bool]) -> list[StreamEvent]:
    pytest.importorskip("litert_lm", reason="pip install 'ondevice-toolkit[litert]'")
    from toolkit.backends.litert_stream import LiteRtStream

    library, events = FakeLibrary(list(chunks)), []
    session = type("Session", (), {"_lib": library, "_ptr": 1})()
    stream = LiteRtStream(session, "prompt", events.append)
    assert stream.has_ended
    stream.release()
    stream.release()
    assert library.n_inputs == 0
    return events


def test_a_character_cut_between_two_pieces_is_put_together() -> None:
    cut = "！".encode()
    events = streamed((None, b"a" + cut[:1], False), (None, cut[1:], False), (None, None, True))
    assert "".join(event for event in events if isinstance(event, str)) == "a！"
    assert events[-1] == StreamEnd()


def test_bytes_that_never_become_a_character_are_replaced() -> None:
    events = streamed((None, b"a\xff", False), (None, b"\xe3\x81", False), (None, None, True))
    assert "".join(event for event in events if isinstance(event, str)) == "a\ufffd\ufffd"


def test_the_engines_error_ends_the_stream() -> None:
    assert streamed((None, b"a", False), (b"INTERNAL: boom", None, True))[-1] == StreamEnd("INTERNAL: boom")


def test_a_refused_prompt_leaves_no_buffer_behind() -> None:
    pytest.importorskip("litert_lm", reason="pip install 'ondevice-toolkit[litert]'")
    from toolkit.backends.litert_stream import LiteRtStream

    library = FakeLibrary([])
    with pytest.raises(RuntimeError, match="status 3"):
        LiteRtStream(type("Session", (), {"_lib": library, "_ptr": 1})(), "prompt", lambda event: None)
    assert library.n_inputs == 0


@pytest.mark.usefixtures("module_cache")
def test_a_template_that_fails_carries_the_engines_cause(chat_bundle: Path) -> None:
    native = BACKEND.open_engine(Bundle.open(chat_bundle), context_length=64, threads=1)
    try:
        assert native.render([Message("user", "x")]) == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
        real = native._engine.create_conversation
        native._engine.create_conversation = lambda **options: real(**options, chat_template="{{ raise_exception('no system role') }}")
        with pytest.raises(EngineError, match="no system role"):
            native.render([Message("system", "s"), Message("user", "x")])
    finally:
        native.close()


@pytest.mark.usefixtures("module_cache")
def test_closing_a_session_in_the_middle_of_its_answer_never_waits_and_the_engine_waits_for_it(chat_bundle: Path) -> None:
    native = BACKEND.open_engine(Bundle.open(chat_bundle), context_length=4000, threads=1)
    events: list[StreamEvent] = []
    session = native.session(Sampling(), max_tokens=3900)
    session.start("check the pump", sink=events.append)
    session.close()
    session.close()
    session.cancel()
    assert native.streams._threads
    native.close()
    assert isinstance(events[-1], StreamEnd)
