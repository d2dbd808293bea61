"""llama.cpp's server as a program and inside a wheel: how it starts, ends, and what it tells."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.toolkit.backends.conftest import Oracle
from tests.toolkit.backends.test_contract import streamed
from tests.toolkit.isolated import is_alive, wait_until
from toolkit.backends import llama_server
from toolkit.backends.base import Sampling
from toolkit.backends.gguf import BACKEND, GgufEngine, GgufSession
from toolkit.backends.llama_client import LlamaClient, error_of
from toolkit.backends.llama_server import ServerProcess, find_program
from toolkit.bundle import Bundle
from toolkit.errors import BackendUnavailableError, EngineError, UsageError

STAND_IN = Path(__file__).with_name("llama_stand_in.py")
PROMPT = "check the pump"


@pytest.fixture
def tiny_gguf(targets_folder: Path) -> Bundle:
    pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")
    return Bundle.open(targets_folder / "tiny-gguf-fp32")


def program(path: Path, code: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def named_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A llama-server that `$LLAMA_SERVER` names."""
    path = program(tmp_path / "llama-server", f"import runpy; runpy.run_path({str(STAND_IN)!r}, run_name='__main__')")
    monkeypatch.setenv("LLAMA_SERVER", str(path))
    return path


@pytest.fixture
def inside(tiny_gguf: Bundle, monkeypatch: pytest.MonkeyPatch) -> Iterator[GgufEngine]:
    """An engine whose server is a part of this process."""
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    engine = BACKEND.open_engine(tiny_gguf, context_length=256, threads=1)
    yield engine
    engine.close()


def test_a_program_answers_like_the_oracle_and_is_gone_when_the_engine_is_closed(
    named_program: Path, tiny_gguf: Bundle, oracle: Oracle
) -> None:
    engine = BACKEND.open_engine(tiny_gguf, context_length=256, threads=1)
    assert isinstance(engine._server, ServerProcess) and (pid := engine._server.pid) is not None
    assert streamed(engine.session(Sampling(), max_tokens=24), PROMPT) == oracle.go_on(PROMPT, 24)
    assert os.getpgid(pid) != os.getpgid(0), "Ctrl-C in a terminal would end it"
    command = Path(f"/proc/{pid}/cmdline").read_text() if sys.platform == "linux" else ""
    assert engine.client._headers["Authorization"].split()[1] not in command, "everybody on the machine can read a command line"
    engine.close()
    engine.close()
    wait_until(lambda: not is_alive(pid), "the end of the server")
    with pytest.raises(EngineError, match="does not answer"):
        engine.tokenize(PROMPT)


def test_whoever_has_not_the_key_is_refused(inside: GgufEngine) -> None:
    stranger = LlamaClient(inside.client._host, inside.client._port, "guessed")
    with pytest.raises(EngineError, match="(?i)api key"):
        stranger.post("/tokenize", {"content": PROMPT})


def test_a_program_that_ends_while_it_starts_is_quoted(tiny_gguf: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; print('error: unknown argument: --ctx-size', file=sys.stderr); sys.exit(7)"
    monkeypatch.setenv("LLAMA_SERVER", str(program(tmp_path / "old-server", code)))
    with pytest.raises(EngineError, match="exit code 7.*unknown argument"):
        BACKEND.open_engine(tiny_gguf, context_length=256, threads=1)


def test_a_program_that_never_gets_ready_is_ended(tiny_gguf: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "pid"
    code = f"import os, time; open({str(told)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    monkeypatch.setenv("LLAMA_SERVER", str(program(tmp_path / "slow-server", code)))
    monkeypatch.setattr(llama_server, "_START_S", 3.0)
    with pytest.raises(EngineError, match="given 3 s"):
        BACKEND.open_engine(tiny_gguf, context_length=256, threads=1)
    wait_until(lambda: not is_alive(int(told.read_text())), "the end of the server")


@pytest.mark.parametrize("is_program", [True, False])
def test_a_gpu_that_is_asked_for_and_not_here_is_said(
    is_program: bool, tiny_gguf: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said = "print('warning: no usable GPU found, --gpu-layers option will be ignored', file=sys.stderr)"
    code = f"import runpy, sys; {said}; runpy.run_path({str(STAND_IN)!r}, run_name='__main__')"
    monkeypatch.setenv("LLAMA_SERVER", str(program(tmp_path / "llama-server", code)) if is_program else "")
    if not is_program:
        monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(llama_server, "processors", lambda xllamacpp: ("CPU",))
    for layers, n_warnings in (("99", 1), ("0", 0)):
        caplog.clear()
        monkeypatch.setenv("LLAMA_ARG_N_GPU_LAYERS", layers)
        BACKEND.open_engine(tiny_gguf, context_length=64, threads=1).close()
        assert caplog.text.count("runs on the CPU") == n_warnings


def test_a_variable_that_names_no_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_SERVER", "/nowhere/llama-server")
    with pytest.raises(UsageError, match=r"\$LLAMA_SERVER"):
        find_program()


def test_without_program_and_wheel_the_fix_names_both(tiny_gguf: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(BackendUnavailableError) as caught:
        BACKEND.open_engine(tiny_gguf, context_length=256, threads=1)
    assert "ondevice-toolkit[gguf]" in caught.value.fix and "llama-server" in caught.value.fix


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a program with who started it")
def test_a_killed_app_leaves_no_server_behind(named_program: Path, tiny_gguf: Bundle) -> None:
    code = (
        "import sys; from pathlib import Path; from toolkit.backends.llama_server import start_server\n"
        "server = start_server(Path(sys.argv[1]), context_length=64, threads=1)\n"
        "print(server.pid, flush=True)\n"
        "import time; time.sleep(600)"
    )
    host = subprocess.Popen([sys.executable, "-c", code, str(tiny_gguf.entry_path)], stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    pid = int(host.stdout.readline())
    assert is_alive(pid)
    os.kill(host.pid, signal.SIGKILL)
    host.wait()
    host.stdout.close()
    wait_until(lambda: not is_alive(pid), "the end of the server")


@pytest.mark.parametrize("is_program", [True, False])
def test_no_debugger_speaks_where_llama_cpp_aborts(
    is_program: bool, named_program: Path, tiny_gguf: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would start one to print where: a page of files that nobody has, and the cause is cut off."""
    monkeypatch.setenv("PATH", str(tmp_path))
    if not is_program:
        monkeypatch.delenv("LLAMA_SERVER")
        named_program.unlink()
    program(tmp_path / "gdb", f"open({str(tmp_path / 'spoke')!r}, 'w')")
    code = (
        "import sys; from pathlib import Path; from toolkit.backends.llama_server import start_server\n"
        "start_server(Path(sys.argv[1]), context_length=1, threads=1)"
    )
    host = subprocess.run([sys.executable, "-c", code, str(tiny_gguf.entry_path)], capture_output=True, text=True, check=False)
    assert host.returncode, "with one token it aborts"
    assert not (tmp_path / "spoke").exists()


def test_a_server_that_dies_ends_the_answer_with_an_error(named_program: Path, tiny_gguf: Bundle) -> None:
    engine = BACKEND.open_engine(tiny_gguf, context_length=512, threads=1)
    events: list[Any] = []

    def sink(event: Any) -> None:
        events.append(event)
        if len(events) == 1:
            os.kill(engine._server.pid, signal.SIGKILL)  # type: ignore[attr-defined, arg-type]

    engine.session(Sampling(), max_tokens=500).start(PROMPT, sink=sink)
    wait_until(lambda: bool(events) and not isinstance(events[-1], str), "the end of the answer")
    assert events[-1].error
    engine.close()


def test_an_answer_with_cut_characters_is_gone_on_from_as_its_text_reads(inside: GgufEngine, oracle: Oracle) -> None:
    """The server tells no ids of tokens that left a character unfinished: without the text they would be missing from the cache."""
    session = GgufSession(inside, Sampling(100.0, 311, 1.0, 0), max_tokens=60)
    text = streamed(session, PROMPT)
    assert "\ufffd" in text and session.counts().n_generated_tokens == 60
    session._choice, session._max_tokens = GgufSession(inside, Sampling(), max_tokens=1)._choice, 12
    assert streamed(session, " fox") == oracle.go_on(PROMPT + text + " fox", 12)


def test_the_stop_token_that_ends_a_turn_is_the_templates(inside: GgufEngine, oracle: Oracle) -> None:
    assert inside.turn_end() == [2]
    session = next(session for seed in range(12) if (session := stopped(inside, seed)) is not None)
    assert session._ids[-1] == 2
    held = len(session._ids)
    streamed(session, " fox")
    assert session._ids[held - 1] == 2 and session._ids[held : held + 1] == inside.tokenize(" fox")[:1]


def stopped(engine: GgufEngine, seed: int) -> GgufSession | None:
    """A session whose model ended its answer, or None."""
    session = GgufSession(engine, Sampling(100.0, 311, 1.0, seed), max_tokens=150)
    streamed(session, PROMPT)
    return session if session.counts().n_generated_tokens < 150 else None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error": {"code": 400, "message": "the request exceeds the\\ncontext"}}', "the request exceeds the context"),
        (b'{"message": "plain"}', "plain"),
        (b"<html>no JSON</html>", "<html>no JSON</html>"),
        (b"[1]", "[1]"),
        (b"", "it gave no reason"),
    ],
)
def test_the_message_is_found_in_whatever_the_server_sends(body: bytes, expected: str) -> None:
    assert error_of(body) == expected
