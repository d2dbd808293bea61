"""Starts llama.cpp's server: the program `llama-server` where there is one, else the server inside the xllamacpp wheel."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from toolkit.backends.llama_client import LlamaClient
from toolkit.backends.opening import import_library
from toolkit.errors import BackendUnavailableError, EngineError, UsageError, one_line
from toolkit.helper_processes import add_helper, remove_helper
from toolkit.installed import installed_version

_LOG = logging.getLogger(__name__)
PROGRAM_VARIABLE = "LLAMA_SERVER"
LAYERS_VARIABLE = "LLAMA_ARG_N_GPU_LAYERS"
DISTRIBUTION = "xllamacpp"
_PROGRAM = "llama-server"
_START_S = 170.0  # below the 180 s after which an engine's process counts as hanging, so that this error is the one seen
_EXIT_S = 2.0
_PROBE_S = 20.0
_TAIL_LINES = 40
# Threads that wait by spinning take the cores from each other as soon as anything else runs. A llama.cpp that aborts would start a
# debugger, whose page of files that nobody has hides the cause.
_DEFAULTS = {"OMP_WAIT_POLICY": "PASSIVE", "GGML_NO_BACKTRACE": "1"}
# On Linux the server asks to be killed with the thread that started it, then becomes the program: a killed app leaves none behind.
_LAUNCH = """
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
    if os.getppid() != int(sys.argv[1]): sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class LlamaServer(Protocol):
    """A running server.

    Attributes:
        client: Asks it.
    """

    client: LlamaClient

    def stop(self) -> None:
        """End it; may be called twice."""


def find_program() -> str | None:
    """The llama-server to use: `$LLAMA_SERVER`, else the one on PATH; None if there is none.

    Raises:
        UsageError: `$LLAMA_SERVER` names no program.
    """
    named = os.environ.get(PROGRAM_VARIABLE)
    if not named:
        return shutil.which(_PROGRAM)
    if (found := shutil.which(named)) is None:
        raise UsageError(
            f"${PROGRAM_VARIABLE} names no program",
            why=f"it is {named!r}",
            fix=f"set it to the path of llama-server, or unset {PROGRAM_VARIABLE}",
        )
    return found


def start_server(model: Path, *, context_length: int, threads: int) -> LlamaServer:
    """A server with `model` loaded and one slot of `context_length` tokens.

    Raises:
        BackendUnavailableError: There is neither a program nor the wheel.
        EngineError: The program does not start, or refuses the file.
        Exception: The wheel refuses the file: RuntimeError, or what the bindings raise.
    """
    program = find_program()
    if program is not None:
        return ServerProcess(program, model, context_length=context_length, threads=threads)
    return ServerInside(model, context_length=context_length, threads=threads)


def probe_server() -> tuple[str, tuple[str, ...], str]:
    """Version, processors and a line about what `start_server` would start.

    Raises:
        BackendUnavailableError: There is nothing to start, or it does not run here.
    """
    if (program := find_program()) is not None:
        return _probe_program(program)
    xllamacpp = import_wheel()
    uses = processors(xllamacpp)
    # "CPU : SSE3 = 1 | AVX2 = 1 | ...": what this build uses of the processor
    _, _, found = str(xllamacpp.get_system_info()).partition("CPU :")
    names = [part.split("=")[0].strip() for part in found.split("|") if part.partition("=")[2].strip() == "1"]
    version = f"{DISTRIBUTION} {installed_version(DISTRIBUTION)}"
    return version, uses, f"llama.cpp's server out of the wheel, in the engine's process; {', '.join(names) or 'no instruction sets told'}"


def processors(xllamacpp: Any) -> tuple[str, ...]:
    """What the wheel's build computes on here."""
    names = [str(device["name"]).upper() for device in xllamacpp.get_device_info()]
    return tuple(dict.fromkeys("CPU" if name.startswith("CPU") else "GPU" for name in names)) or ("CPU",)


def asked_gpu_layers() -> str:
    """What llama.cpp's own variable asks for; empty if it asks for no GPU."""
    layers = os.environ.get(LAYERS_VARIABLE, "").strip()
    return "" if layers == "0" else layers


def warn_of_cpu(layers: str) -> None:
    """An accelerator was asked for that is not here."""
    _LOG.warning("$%s asks for %s layers on a GPU; llama.cpp finds none and runs on the CPU", LAYERS_VARIABLE, layers)


def _probe_program(program: str) -> tuple[str, tuple[str, ...], str]:
    try:
        said = [_said_by(program, option) for option in ("--version", "--list-devices")]
    except (OSError, subprocess.SubprocessError) as error:
        raise BackendUnavailableError(
            f"{program} does not run here", why=one_line(error), fix="build llama.cpp again for this machine"
        ) from error
    version = next((line.removeprefix("version:").strip() for line in said[0] if line.startswith("version:")), "unknown version")
    devices = [line.strip().partition(":")[0] for line in said[1] if line.startswith("  ")]
    return version, ("CPU", "GPU") if devices else ("CPU",), f"{program}, over loopback; devices: {', '.join(devices) or 'the CPU alone'}"


def _said_by(program: str, option: str) -> list[str]:
    done = subprocess.run([program, option], capture_output=True, text=True, timeout=_PROBE_S, check=True, errors="replace")
    return (done.stderr + "\n" + done.stdout).splitlines()


class ServerProcess:
    """llama-server as a process, on a loopback port of its own, behind a key that only we know."""

    def __init__(self, program: str, model: Path, *, context_length: int, threads: int) -> None:
        key, port = secrets.token_hex(), _free_port()
        given = {"--model": str(model), "--host": "127.0.0.1", "--port": port, "--ctx-size": context_length, "--parallel": 1}
        given |= {"--threads": threads, "--threads-batch": threads}
        command = [program, *(str(part) for pair in given.items() for part in pair)]
        self._process: subprocess.Popen[bytes] | None = None
        self._log: list[str] = []
        self._has_ended = threading.Event()
        started = threading.Event()
        self._failure: OSError | None = None
        # Killed with the thread that starts it: so that thread lives as long as the server, and reads what it prints meanwhile.
        threading.Thread(target=self._keep, args=[command, _environment(key), started], name="llama-server", daemon=True).start()
        started.wait()
        if self._failure is not None:
            raise EngineError(f"{program} does not start", why=one_line(self._failure), fix="build llama.cpp again for this machine")
        self.client = LlamaClient("127.0.0.1", port, key)
        try:
            self.client.wait_until_ready(_START_S, self._death)
        except BaseException:
            self.stop()
            raise

    def _keep(self, command: list[str], environment: Mapping[str, str], started: threading.Event) -> None:
        launch = [sys.executable, "-c", _LAUNCH, str(os.getpid()), *command]
        try:
            process = subprocess.Popen(
                launch,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=dict(environment),
                process_group=_group(),
            )
        except OSError as error:
            self._failure = error
            self._has_ended.set()
            started.set()
            return
        self._process = process
        add_helper(process.pid)
        started.set()
        assert process.stderr is not None
        for line in process.stderr:
            text = line.decode("utf-8", errors="replace").strip()
            if "no usable GPU" in text and (layers := asked_gpu_layers()):
                warn_of_cpu(layers)
            self._log = [*self._log[-_TAIL_LINES:], text]
        process.wait()
        remove_helper(process.pid)
        process.stderr.close()
        self._has_ended.set()

    def _death(self) -> str | None:
        if not self._has_ended.is_set() or self._process is None:
            return None
        said = [line for line in self._log if "error" in line.lower() or "fail" in line.lower()] or self._log
        return f"exit code {self._process.returncode}; it said: {' | '.join(said[-3:])[:300] or 'nothing'}"

    @property
    def pid(self) -> int | None:
        """Of the process; None once it has ended."""
        return None if self._process is None or self._has_ended.is_set() else self._process.pid

    def stop(self) -> None:
        if self._process is not None and not self._has_ended.is_set():
            with suppress(OSError):
                self._process.kill()
            self._has_ended.wait(_EXIT_S)


class ServerInside:
    """The same server, run by threads of this process out of the xllamacpp wheel."""

    def __init__(self, model: Path, *, context_length: int, threads: int) -> None:
        xllamacpp = import_wheel()
        key, params = secrets.token_hex(), xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel, params.warmup = str(model), context_length, 1, False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.api_keys, params.cache_ram_mib, params.verbosity = [key], 0, 0
        if layers := asked_gpu_layers():
            params.n_gpu_layers = int(layers) if layers.lstrip("-").isdigit() else -1
            if processors(xllamacpp) == ("CPU",):
                warn_of_cpu(layers)
        self._server: Any = xllamacpp.Server(params)
        address = urlsplit(self._server.listening_address)
        self.client = LlamaClient(address.hostname or "127.0.0.1", address.port or 80, key)

    def stop(self) -> None:
        self._server = None  # its destructor ends the threads and frees the weights


def import_wheel() -> Any:
    """xllamacpp.

    Raises:
        BackendUnavailableError: It is missing, or does not load here.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)

    def load() -> Any:
        import xllamacpp

        return xllamacpp

    instead = f"build llama.cpp and put {_PROGRAM} on PATH"
    return import_library(load, engine="GGUF", extra="gguf", packages={DISTRIBUTION: DISTRIBUTION}, instead=instead)


def _group() -> int | None:
    """None: the group of an engine's own process, with which it is killed. 0, a group of its own, in an app: Ctrl-C in a terminal
    is the app's to handle and would end a server."""
    is_worker = not hasattr(os, "getsid") or os.getsid(0) == os.getpid()
    return None if is_worker else 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environment(key: str) -> dict[str, str]:
    """Settings that older servers do not know go in by the environment, where an unknown one is passed over; so does the key,
    which a command line would show to everybody on the machine."""
    settings = {"LLAMA_API_KEY": key, "LLAMA_ARG_CACHE_RAM": "0", "LLAMA_ARG_WARMUP": "0", "LLAMA_ARG_WEBUI": "0", "LLAMA_OFFLINE": "1"}
    return {**_DEFAULTS, **os.environ, **settings}
