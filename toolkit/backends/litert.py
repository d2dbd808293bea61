"""LiteRT-LM (`litert-lm-api`): runs .litertlm bundles on every platform, Android included."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import platform
import threading
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.backends.base import Counts, Message, Sampling, Sink
from toolkit.backends.litert_stream import StreamHandle, start_chat, start_plain
from toolkit.cache import cache_directory
from toolkit.errors import BackendUnavailableError, EngineError, ToolkitError

if TYPE_CHECKING:
    from toolkit.bundle import Bundle

_LOG = logging.getLogger(__name__)
_DISTRIBUTION = "litert-lm-api"
_NO_CACHE = ":nocache"


def _import_engine() -> Any:
    """Import litert_lm, its own log kept quiet unless ours is at DEBUG."""
    try:
        import litert_lm
    except ModuleNotFoundError as error:
        if error.name != "litert_lm":
            raise
        raise BackendUnavailableError(
            "the LiteRT engine is not installed",
            why=f"the package {_DISTRIBUTION} is missing",
            fix="pip install 'ondevice-toolkit[litert]'",
        ) from error
    try:
        is_verbose = _LOG.isEnabledFor(logging.DEBUG)
        litert_lm.set_min_log_severity(litert_lm.LogSeverity.INFO if is_verbose else litert_lm.LogSeverity.SILENT)
    except (OSError, RuntimeError) as error:
        raise BackendUnavailableError(
            "the LiteRT engine does not load on this machine",
            why=f"{_DISTRIBUTION} {_version()}, {platform.machine()}: {error}",
            fix=f"pip install --force-reinstall {_DISTRIBUTION}, or use a bundle for another target",
        ) from error
    return litert_lm


def _version() -> str:
    try:
        return metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


class LiteRtBackend:
    """See `toolkit.backends.base.Backend`."""

    name = "litert"
    targets = ("litert",)

    def open_engine(self, bundle: Bundle, *, context_length: int, threads: int) -> LiteRtEngine:
        litert_lm = _import_engine()
        library = litert_lm.engine._get_lib()
        try:
            engine = litert_lm.Engine(
                str(bundle.entry_path),
                backend=litert_lm.Backend.CPU(thread_count=threads),
                max_num_tokens=context_length,
                cache_dir=_cache_dir(bundle),
                enable_benchmark=True,
            )
        except RuntimeError as error:
            raise EngineError(
                f"LiteRT cannot open {bundle.entry_path.name} of {bundle.manifest.name}",
                why=_last_error(library) or str(error),
                fix=f"see what it is: toolkit verify {bundle.path}; it was written for {_written_for(bundle)}, here is {_version()}",
            ) from error
        return LiteRtEngine(litert_lm, engine, bundle)


def _written_for(bundle: Bundle) -> str:
    tools = bundle.manifest.tools
    return next((f"{name} {tools[name]}" for name in ("litert-lm-builder", _DISTRIBUTION) if name in tools), "an unknown version")


def _last_error(library: Any) -> str:
    """The cause behind the Python wrapper's RuntimeError, as the C library remembers it for this thread."""
    library.litert_lm_get_last_error_message.restype = ctypes.c_char_p
    message = library.litert_lm_get_last_error_message()
    return message.decode("utf-8", errors="replace").strip() if message else ""


def _cache_dir(bundle: Bundle) -> str:
    """Where the engine keeps repacked weights: per bundle, per engine version and per CPU, which they are packed for."""
    machine = hashlib.sha256(_cpu_model().encode()).hexdigest()[:12]
    try:
        return str(cache_directory("engines", f"litert-{_version()}", machine, bundle.content_hash[:32]))
    except ToolkitError as error:
        _LOG.warning("no cache for repacked weights, so the engine needs more memory: %s", error)
        return _NO_CACHE


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

    def __init__(self, litert_lm: Any, engine: Any, bundle: Bundle) -> None:
        self._litert_lm, self._engine, self._bundle = litert_lm, engine, bundle
        self.n_start_tokens = 0 if engine.bos_token_id is None else 1
        self._closing: list[threading.Thread] = []

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self._engine.tokenize(text)
        return ids

    def chat(self, messages: Sequence[Message], sampling: Sampling) -> LiteRtSession:
        history = [{"role": message.role, "content": message.content} for message in messages]
        conversation = self._created(self._engine.create_conversation, sampling, messages=history)

        def start(text: str, max_tokens: int, sink: Sink) -> StreamHandle:
            return start_chat(conversation, text, max_tokens, sink)

        def render(text: str) -> str:
            rendered: str = conversation.render_message_to_string(text)
            if not rendered:
                raise self.error("the bundle's chat template failed", "it rendered nothing")
            return rendered

        return LiteRtSession(self, conversation, start, render, lambda: int(conversation.token_count))

    def plain(self, sampling: Sampling, max_tokens: int) -> LiteRtSession:
        session = self._created(self._engine.create_session, sampling, apply_prompt_template=False, max_output_tokens=max_tokens)

        def start(text: str, max_tokens: int, sink: Sink) -> StreamHandle:
            return start_plain(session, text, sink)

        return LiteRtSession(self, session, start, lambda text: text, lambda: 0)

    def _created(self, create: Callable[..., Any], sampling: Sampling, **options: Any) -> Any:
        config = self._litert_lm.SamplerConfig(
            top_k=sampling.top_k if sampling.temperature else 1,
            top_p=sampling.top_p,
            temperature=sampling.temperature or 1.0,
            seed=sampling.seed,
        )
        try:
            return create(sampler_config=config, **options)
        except RuntimeError as error:
            raise self.error("LiteRT cannot begin a conversation", str(error)) from error

    def error(self, what: str, why: str) -> EngineError:
        """An error with the C library's own cause, or `why` when it has none."""
        cause = _last_error(self._litert_lm.engine._get_lib())
        return EngineError(what, why=cause or why, fix=f"check the bundle: toolkit verify {self._bundle.path}")

    def close_later(self, close: Callable[[], None]) -> None:
        """Run `close` in the background: deleting a KV cache waits for the stream that still uses it."""
        thread = threading.Thread(target=close, name="litert-close", daemon=True)
        self._closing = [other for other in self._closing if other.is_alive()] + [thread]
        thread.start()

    def close(self) -> None:
        for thread in self._closing:
            thread.join()
        self._engine.close()


class LiteRtSession:
    """See `toolkit.backends.base.NativeSession`. `native` is a litert_lm Conversation or Session."""

    def __init__(
        self,
        engine: LiteRtEngine,
        native: Any,
        start: Callable[[str, int, Sink], StreamHandle],
        render: Callable[[str], str],
        count_cached: Callable[[], int],
    ) -> None:
        self._engine, self._native, self._start = engine, native, start
        self._render, self._count_cached = render, count_cached
        self._handle: StreamHandle | None = None
        self._last_handle: StreamHandle | None = None  # its callback may still be returning when the next stream starts
        self._lock = threading.RLock()  # a signal handler may cancel while its own thread closes
        self._is_closed = False

    @property
    def n_cached_tokens(self) -> int:
        return self._count_cached()

    def count_prompt_tokens(self, text: str) -> int:
        n_start_tokens = self._engine.n_start_tokens if self._count_cached() == 0 else 0
        return len(self._engine.tokenize(self._render(text))) + n_start_tokens

    def start(self, text: str, *, max_tokens: int, sink: Sink) -> None:
        self._last_handle = self._handle
        try:
            self._handle = self._start(text, max_tokens, sink)
        except RuntimeError as error:
            raise self._engine.error("LiteRT refused the prompt", str(error)) from error

    def cancel(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._native.cancel_process()

    def counts(self) -> Counts:
        info = self._native.get_benchmark_info()
        return Counts(
            n_prompt_tokens=info.last_prefill_token_count,
            n_generated_tokens=info.last_decode_token_count,
            prefill_tokens_per_s=info.last_prefill_tokens_per_second or None,
            decode_tokens_per_s=info.last_decode_tokens_per_second or None,
        )

    def close(self) -> None:
        is_running = self._handle is not None and not self._handle.has_ended
        if is_running:
            self.cancel()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if is_running:
            self._engine.close_later(self._free)
        else:
            self._free()

    def _free(self) -> None:
        """Blocks until a stream that still runs has ended."""
        self._native.close()
        if self._handle is not None:
            self._handle.release()


BACKEND = LiteRtBackend()
