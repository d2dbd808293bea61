"""LiteRT-LM (`litert-lm-api`): runs .litertlm bundles on every platform, Android included."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import logging
import os
import platform
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.backends.base import BackendFacts, Capabilities, Counts, Message, Sampling, Sink
from toolkit.backends.litert_stream import LiteRtStream
from toolkit.backends.opening import import_library, refused_files
from toolkit.backends.streams import StreamThreads
from toolkit.cache import cache_directory, cache_root, check_free_disk, directory_bytes, write_error
from toolkit.errors import BackendUnavailableError, EngineError, ToolkitError
from toolkit.installed import installed_version
from toolkit.limits import check_context_length, check_threads

if TYPE_CHECKING:
    from toolkit.bundle import Bundle

_LOG = logging.getLogger(__name__)
_DISTRIBUTION = "litert-lm-api"
_NO_CACHE = ":nocache"
_WHOLE = "whole"  # an empty file beside a cache that an engine has answered with: nothing more will be written to it


def _import_engine() -> Any:
    """Import litert_lm, its own log kept quiet unless ours is at DEBUG."""

    def load() -> Any:
        import litert_lm

        is_verbose = _LOG.isEnabledFor(logging.DEBUG)
        litert_lm.set_min_log_severity(litert_lm.LogSeverity.INFO if is_verbose else litert_lm.LogSeverity.SILENT)
        return litert_lm

    return import_library(load, engine="LiteRT", extra="litert", packages={"litert_lm": _DISTRIBUTION})


def _version() -> str:
    return installed_version(_DISTRIBUTION)


class LiteRtBackend:
    """See `toolkit.backends.base.Backend`."""

    name = "litert"
    targets = ("litert",)

    def is_first_start(self, bundle: Bundle) -> bool:
        """Whether the engine has yet to repack the bundle's weights for this CPU, which takes memory besides. Writes nothing."""
        folder = _cache_folder(bundle)
        try:
            _check_usable(folder, bundle)
        except ToolkitError:  # `cache_dir` tells why, once, when the engine is opened
            return True
        return not any(folder.glob("*xnnpack_cache*"))

    def probe(self) -> BackendFacts:
        _import_engine().engine._get_lib()
        return BackendFacts(_version(), ("CPU",), "XNNPACK kernels; this version opens LiteRT on the CPU only", Capabilities())

    def open_engine(self, bundle: Bundle, *, context_length: int, threads: int) -> LiteRtEngine:
        check_threads(threads)
        check_context_length(context_length, most=bundle.manifest.context_length)
        litert_lm = _import_engine()
        library = litert_lm.engine._get_lib()
        cache = cache_dir(bundle)
        try:
            engine = litert_lm.Engine(
                str(bundle.entry_path),
                backend=litert_lm.Backend.CPU(thread_count=threads),
                max_num_tokens=context_length,
                cache_dir=cache,
                enable_benchmark=True,
            )
        except RuntimeError as error:
            said = f"{_last_error(library) or error}; it was written for {_written_for(bundle)}, here is {_version()}"
            raise refused_files(bundle, error, by="LiteRT", why=said) from error
        return LiteRtEngine(litert_lm, engine, bundle, cache)


def _no_constraints() -> BackendUnavailableError:
    """LiteRT-LM has grammars for its Conversation only, which this project does not use (docs/adr/0005-session-api-and-own-stream.md)."""
    return BackendUnavailableError(
        "the LiteRT engine cannot hold an answer to a schema",
        why=f"{_DISTRIBUTION} {_version()} offers that for its conversations, not for the sessions that this project uses",
        fix="use a bundle that can: convert SOURCE --to onnx (or gguf, or mlx)",
    )


def _written_for(bundle: Bundle) -> str:
    tools = bundle.manifest.tools
    return next((f"{name} {tools[name]}" for name in ("litert-lm-builder", _DISTRIBUTION) if name in tools), "an unknown version")


def _last_error(library: Any) -> str:
    """The cause behind the Python wrapper's RuntimeError, as the C library remembers it for this thread."""
    library.litert_lm_get_last_error_message.restype = ctypes.c_char_p
    message = library.litert_lm_get_last_error_message()
    return message.decode("utf-8", errors="replace").strip() if message else ""


def cache_dir(bundle: Bundle) -> str:
    """Where the engine keeps repacked weights: per bundle, per engine version and per CPU, which they are packed for.

    `:nocache` where they cannot be kept: the engine refuses a folder it may not write to, and aborts the process on a full
    disk, so both are seen here first.
    """
    try:
        return str(_usable_cache(bundle))
    except ToolkitError as error:
        _LOG.warning("going on without a cache of repacked weights, slower and in more memory: %s (%s)", error.what, error.why)
        return _NO_CACHE


def _usable_cache(bundle: Bundle) -> Path:
    """The cache folder, made if missing. Raises ToolkitError where it cannot be used."""
    folder = cache_directory(*_cache_folder(bundle).relative_to(cache_root()).parts)
    _check_usable(folder, bundle)
    return folder


def _cache_folder(bundle: Bundle) -> Path:
    machine = hashlib.sha256(_cpu_model().encode()).hexdigest()[:12]
    return cache_root() / "engines" / f"litert-{_version()}" / machine / bundle.content_hash[:32]


def _check_usable(folder: Path, bundle: Bundle) -> None:
    """Raises ToolkitError where a folder that is there cannot be written to, or the disk has no room for a copy of the weights."""
    if folder.is_dir() and not os.access(folder, os.W_OK):
        raise write_error(folder, OSError(errno.EACCES, os.strerror(errno.EACCES)))
    if not (folder / _WHOLE).exists():
        check_free_disk(folder, bundle.bytes - directory_bytes(folder), "the engine's copy of the weights")


def _cpu_model() -> str:
    """What decides how weights are packed: the CPU's model and its instruction sets."""
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(sorted({line for line in lines if line.partition(":")[0].strip() in wanted}))


class LiteRtEngine:
    """See `toolkit.backends.base.NativeEngine`."""

    def __init__(self, litert_lm: Any, engine: Any, bundle: Bundle, cache: str = _NO_CACHE) -> None:
        self._litert_lm, self._engine, self._bundle, self._cache = litert_lm, engine, bundle, cache
        self.n_start_tokens = 0 if engine.bos_token_id is None else 1
        self._has_answered = False
        self.streams = StreamThreads("litert")

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self._engine.tokenize(text)
        return ids

    def render(self, messages: Sequence[Message]) -> str:
        *history, last = ({"role": message.role, "content": message.content} for message in messages)
        try:
            with self._engine.create_conversation(messages=history) as conversation:
                rendered: str = conversation.render_message_to_string(last)
        except RuntimeError as error:
            raise self.error("the bundle's chat template failed", str(error)) from error
        if not rendered:
            raise self.error("the bundle's chat template failed", "it rendered nothing")
        return rendered

    def session(self, sampling: Sampling, *, max_tokens: int) -> LiteRtSession:
        config = self._litert_lm.SamplerConfig(
            top_k=sampling.top_k if sampling.temperature else 1,
            top_p=sampling.top_p,
            temperature=sampling.temperature or 1.0,
            seed=sampling.seed,
        )
        try:
            native = self._engine.create_session(apply_prompt_template=False, sampler_config=config, max_output_tokens=max_tokens)
        except RuntimeError as error:
            raise self.error("LiteRT cannot begin a session", str(error)) from error
        return LiteRtSession(self, native)

    def error(self, what: str, why: str) -> EngineError:
        """An error with the C library's own cause, or `why` when it has none."""
        cause = _last_error(self._litert_lm.engine._get_lib())
        return EngineError(what, why=cause or why, fix=f"check the bundle: toolkit verify {self._bundle.path}")

    def note_answer(self) -> None:
        """An answer has ended. Noted now, because an engine in a process of its own is ended, not closed."""
        if not self._has_answered and self._cache != _NO_CACHE:
            with suppress(OSError):
                Path(self._cache, _WHOLE).touch()
        self._has_answered = True

    def close(self) -> None:
        self.streams.join()
        self._engine.close()


class LiteRtSession:
    """See `toolkit.backends.base.NativeSession`. `native` is a litert_lm.Session."""

    def __init__(self, engine: LiteRtEngine, native: Any) -> None:
        self._engine, self._native = engine, native
        self._stream: LiteRtStream | None = None
        self._last_stream: LiteRtStream | None = None  # its callback may still be returning when the next stream starts
        self._lock = threading.RLock()  # a signal handler may cancel while its own thread closes
        self._is_closed = False

    def start(self, text: str, *, sink: Sink, schema: str | None = None) -> None:
        if schema is not None:
            raise _no_constraints()
        self._last_stream = self._stream
        if self._last_stream is not None:
            self._last_stream.release()
        try:
            self._stream = LiteRtStream(self._native, text, sink)
        except RuntimeError as error:
            raise self._engine.error("LiteRT refused the prompt", str(error)) from error

    def cancel(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._native.cancel_process()

    def counts(self) -> Counts:
        info = self._native.get_benchmark_info()
        self._engine.note_answer()
        return Counts(
            n_prompt_tokens=info.last_prefill_token_count,
            n_generated_tokens=info.last_decode_token_count,
            prefill_tokens_per_s=info.last_prefill_tokens_per_second or None,
            decode_tokens_per_s=info.last_decode_tokens_per_second or None,
        )

    def close(self) -> None:
        is_running = self._stream is not None and not self._stream.has_ended
        if is_running:
            self.cancel()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if is_running:
            self._engine.streams.run(self._free)  # deleting a KV cache waits for the stream that still uses it
        else:
            self._free()

    def _free(self) -> None:
        """Blocks until a stream that still runs has ended."""
        self._native.close()
        if self._stream is not None:
            self._stream.release()


BACKEND = LiteRtBackend()
