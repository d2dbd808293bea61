"""An engine: one bundle's weights in memory. Sessions answer with it."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterable

from toolkit.backends import backend_for, load_backend
from toolkit.backends.base import Backend, Message, NativeEngine, Sampling
from toolkit.budget import Budget
from toolkit.bundle import Bundle
from toolkit.errors import BudgetError, EngineError, UsageError
from toolkit.limits import check_context_length, check_messages, check_sampling, check_threads, drawn_seed, usable_threads
from toolkit.metrics import measure_rss_bytes
from toolkit.session import Session
from toolkit.units import format_bytes

_CONTEXT_STEP = 64
_FIRST_CONTEXT = 512
_MOST_THREADS = 4  # decoding is bound by memory; more CPUs than this rarely help and often hurt


class Engine:
    """Owns the weights. `Engine.open` makes one; use it as a context manager, or call `close`.

    Threads: every method may be called from any thread. Sessions of one engine may answer at the same time; the engine
    takes turns.

    Attributes:
        bundle: What is loaded.
        budget: The limits it was opened with.
        backend: The backend that runs it.
        threads: CPU threads it uses.
        load_s: How long the last (re)opening took.
    """

    def __init__(self, bundle: Bundle, backend: Backend, *, budget: Budget, fixed_context: int | None, threads: int) -> None:
        """Use `Engine.open`."""
        self.bundle, self.budget, self.backend, self.threads = bundle, budget, backend.name, threads
        self.lock = threading.RLock()
        self.load_s = 0.0
        self._backend, self._fixed_context = backend, fixed_context
        self._native: NativeEngine | None = None
        self._context_length = 0
        self._n_spent_tokens = 0
        self._has_answered = False
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()

    @classmethod
    def open(
        cls,
        bundle: Bundle | str | os.PathLike[str],
        *,
        budget: Budget | None = None,
        context_length: int | None = None,
        threads: int | None = None,
        backend: str | None = None,
        expected_tokens: int | None = None,
    ) -> Engine:
        """Load a bundle.

        Args:
            bundle: A checked bundle, or the folder of one, which is then checked.
            budget: Limits; see `Budget`.
            context_length: Tokens of the KV cache, fixed. None: as few as the work needs, because each decoded token
                reads the whole cache; a session that outgrows it makes the engine open again with a larger one, up to
                what the bundle was converted for.
            threads: CPU threads. None: the CPUs this process may use, at most 4.
            backend: None: the one that runs the bundle's target.
            expected_tokens: With `context_length` None, what the first job may need, prompt and answer; a wrong guess
                costs one more opening.

        Raises:
            FormatError: The bundle is damaged.
            UsageError: A setting is out of range, or the backend does not run this target.
            BudgetError: The weights alone, or the loaded engine, exceed the memory budget.
            BackendUnavailableError: The engine's library is missing or does not load here.
            EngineError: The engine refused the files.
        """
        bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        manifest = bundle.manifest
        threads = min(usable_threads(), _MOST_THREADS) if threads is None else threads
        check_threads(threads)
        if context_length is not None:
            check_context_length(context_length, most=manifest.context_length)
        chosen = load_backend(backend or backend_for(manifest.target))
        if manifest.target not in chosen.targets:
            raise UsageError(
                f"the backend {chosen.name} cannot run {bundle.name}",
                why=f"it is a {manifest.target} bundle; {chosen.name} runs {', '.join(chosen.targets)}",
                fix="leave --backend out",
            )
        engine = cls(bundle, chosen, budget=budget or Budget(), fixed_context=context_length, threads=threads)
        engine._open(context_length or engine._rounded(expected_tokens or _FIRST_CONTEXT))
        return engine

    @property
    def context_length(self) -> int:
        """Tokens the KV cache holds now."""
        return self._context_length

    @property
    def max_context_length(self) -> int:
        """Tokens it may hold: the fixed context, or what the bundle was converted for."""
        return self._fixed_context or self.bundle.manifest.context_length

    @property
    def native(self) -> NativeEngine:
        """The backend's engine.

        Raises:
            UsageError: The engine is closed.
        """
        if self._native is None:
            raise UsageError(f"the engine of {self.bundle.name} is closed", fix="open it again: Engine.open(bundle)")
        return self._native

    def tokenize(self, text: str) -> list[int]:
        """Token ids of `text`, nothing added."""
        with self.lock:
            return self.native.tokenize(text)

    def session(
        self,
        *,
        system: str | None = None,
        messages: Iterable[Message] = (),
        temperature: float = 0.0,
        top_k: int = 40,
        top_p: float = 0.95,
        seed: int | None = None,
    ) -> Session:
        """Begin a conversation through the bundle's chat template.

        Args:
            system: The system message.
            messages: What was said before; the roles are "user" and "assistant".
            temperature: 0 takes the likeliest token each time, so that the same prompt has the same answer.
            top_k, top_p: Which tokens are drawn from when the temperature is not 0.
            seed: None draws one; it is in `Session.sampling` afterwards.

        Raises:
            UsageError: The bundle is a base model without a chat template, or an argument is out of range.
        """
        if not self.bundle.manifest.chat:
            raise UsageError(
                f"{self.bundle.name} cannot chat",
                why="it is a base model: its checkpoint came without a chat template",
                fix='let it continue a text: toolkit run BUNDLE "Once upon a time", or Engine.plain_session()',
            )
        given = [Message("system", system), *messages] if system is not None else list(messages)
        checked = check_messages(given, context_length=self.max_context_length)
        return self._session(checked, Sampling(temperature, top_k, top_p, drawn_seed(seed)), is_chat=True)

    def plain_session(self, *, temperature: float = 0.0, top_k: int = 40, top_p: float = 0.95, seed: int | None = None) -> Session:
        """Begin a text that the model continues as it is, without a template: the way to use a base model.

        Raises:
            UsageError: An argument is out of range.
        """
        return self._session((), Sampling(temperature, top_k, top_p, drawn_seed(seed)), is_chat=False)

    def _session(self, messages: tuple[Message, ...], sampling: Sampling, *, is_chat: bool) -> Session:
        vocab_size = self.bundle.manifest.spec.get("vocab_size")
        check_sampling(sampling, vocab_size=vocab_size if isinstance(vocab_size, int) else None)
        session = Session(self, messages, sampling, is_chat=is_chat)
        self._sessions.add(session)
        return session

    def close(self) -> None:
        """Cancel what runs, free all sessions' caches and the weights. May be called twice."""
        with self.lock:
            for session in list(self._sessions):
                session.close()
            self._close_native()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def make_room(self, n_tokens: int) -> bool:
        """For sessions: see to it that the KV cache can hold `n_tokens`; true if the engine had to open again.

        Raises:
            EngineError: Another session is answering, so its cache cannot be taken away.
        """
        if n_tokens <= self._context_length:
            self._has_answered = True
            return False
        wanted = max(n_tokens, 2 * self._context_length) if self._has_answered else n_tokens
        self._has_answered = True
        if any(session.is_answering for session in self._sessions):
            raise EngineError(
                f"the context of {self._context_length} tokens is too small and cannot grow now",
                why=f"{n_tokens} are needed, and another session is answering",
                fix=f"wait for it, or open the engine with context_length={self._rounded(wanted)}",
            )
        for session in self._sessions:
            session.drop_cache()
        self._close_native()
        self._open(self._rounded(wanted))
        return True

    def grant_tokens(self, n_tokens: int) -> int:
        """For sessions: how many of `n_tokens` the budget still allows.

        Raises:
            BudgetError: None.
        """
        if self.budget.tokens is None:
            return n_tokens
        left = self.budget.tokens - self._n_spent_tokens
        if left < 1:
            raise BudgetError(
                "the token budget is used up",
                why=f"{self._n_spent_tokens} of {self.budget.tokens} tokens were generated",
                fix=f"open the engine with Budget(tokens={2 * self.budget.tokens}) or more",
            )
        return min(n_tokens, left)

    def spend_tokens(self, n_tokens: int) -> None:
        """For sessions: count what was generated."""
        with self.lock:
            self._n_spent_tokens += n_tokens

    def larger_context_hint(self, n_tokens: int) -> str:
        """The end of a fix: the context that would hold `n_tokens`, if the bundle can."""
        if self.max_context_length < n_tokens <= self.bundle.manifest.context_length:
            return f", or open the engine with --context {n_tokens}"
        return ""

    def _rounded(self, n_tokens: int) -> int:
        return min(-(-n_tokens // _CONTEXT_STEP) * _CONTEXT_STEP, self.max_context_length)

    def _open(self, context_length: int) -> None:
        limit = self.budget.max_resident_bytes
        least = self._estimate_least_bytes(context_length)
        self._check_memory(least, f"its weights and a KV cache of {context_length} tokens alone take", limit)
        started = time.perf_counter()
        self._native = self._backend.open_engine(self.bundle, context_length=context_length, threads=self.threads)
        self.load_s = time.perf_counter() - started
        self._context_length = context_length
        try:
            self._check_memory(measure_rss_bytes() or 0, f"loaded with a context of {context_length} tokens this process takes", limit)
        except BudgetError:
            self._close_native()
            raise

    def _estimate_least_bytes(self, context_length: int) -> int:
        """Weights and KV cache by the manifest's memory model: what no run can do with less."""
        memory = self.bundle.manifest.memory
        weights, per_token = memory.get("weights_bytes"), memory.get("kv_cache_bytes_per_token")
        least = weights if isinstance(weights, int) else self.bundle.entry_path.stat().st_size
        return least + (per_token * context_length if isinstance(per_token, int) else 0)

    def _check_memory(self, n_bytes: int, taken_by: str, limit: int | None) -> None:
        if limit is not None and n_bytes > limit:
            raise BudgetError(
                f"{self.bundle.name} does not fit the memory budget",
                why=f"{taken_by} {format_bytes(n_bytes)}; the budget is {format_bytes(limit)}",
                fix=f"allow {format_bytes(n_bytes + n_bytes // 4)} or more, or convert with a smaller recipe (--recipe int4-g32)",
            )

    def _close_native(self) -> None:
        native, self._native = self._native, None
        if native is not None:
            native.close()
