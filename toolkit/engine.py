"""An engine: one bundle's weights in memory. Sessions answer with it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from toolkit.backends import backend_for, load_backend
from toolkit.backends.base import Message, NativeEngine, Sampling
from toolkit.budget import Budget
from toolkit.bundle import Bundle
from toolkit.device.profile import Device, probe_device
from toolkit.errors import BudgetError, EngineError, UsageError
from toolkit.governed import Governed, choose_governor, refuse_to_load, threads_left
from toolkit.governor import Governor
from toolkit.limits import check_messages, check_sampling, drawn_seed
from toolkit.loader import Loader, LoadSettings
from toolkit.plan import Plan, round_context
from toolkit.session import FinishReason, Session
from toolkit.sessions import Sessions
from toolkit.token_budget import TokenBudget
from toolkit.worker_death import EngineCrashed
from toolkit.worker_watch import WorkerLimits


class Engine:
    """Owns the weights. `Engine.open` makes one; use it as a context manager, or call `close`.

    Threads: every method may be called from any thread. Sessions of one engine may answer at the same time; the engine
    takes turns.

    Attributes:
        bundle: What is loaded.
        budget: The limits it was opened with.
        backend: The backend that runs it.
        governed: Its governor, if it has one, and what that does.
    """

    def __init__(self, loader: Loader, *, budget: Budget, fixed_context: int | None, governor: Governor | None = None) -> None:
        """Use `Engine.open`."""
        self._loader, self.budget, self._fixed_context = loader, budget, fixed_context
        self.bundle, self.backend = loader.plan.bundle, loader.plan.backend
        self.lock, self._has_answered = threading.RLock(), False
        self.governed = Governed(governor, self, is_isolated=loader.is_isolated)
        self._tokens, self._sessions = TokenBudget(budget.tokens), Sessions()

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
        force: bool = False,
        isolated: bool | None = None,
        full_check: bool = False,
        limits: WorkerLimits | None = None,
        device: Device | None = None,
        governor: Governor | bool | None = None,
    ) -> Engine:
        """Load a bundle.

        Args:
            bundle: A checked bundle, or the folder of one, which is checked once it is planned: gigabytes that do not fit are not hashed.
            budget: Limits; see `Budget`.
            context_length: Tokens of the KV cache, fixed. None: as few as the work needs, because each decoded token
                reads the whole cache; a session that outgrows it makes the engine open again with a larger one, up to
                what the bundle was converted for and memory allows.
            threads: CPU threads. None: one for each big core this process may use, at most 4.
            backend: None: the one that runs the bundle's target.
            expected_tokens: With `context_length` None, what the first job may need, prompt and answer; a wrong guess
                costs one more opening.
            force: Load it although it does not fit, or failed before; the metrics say so.
            isolated: Whether the engine gets a process of its own, so that what ends it does not end this one. None: where the
                platform allows.
            full_check: Hash every file of a folder, whatever is remembered; see `Bundle.open`.
            limits: When that process counts as hanging; see `WorkerLimits`.
            device: What it is planned for; None: this one, as it is now.
            governor: What slows it down or stops it for battery, heat or shortage. None: the package's own where the device has a battery
                or tells of heat, or the budget has a limit on either; True or False: always or never.

        Raises:
            FormatError: The bundle is damaged, or the engine refused its files.
            UsageError: A setting is out of range, or the backend does not run this target.
            BudgetError: It does not fit into free memory or the budget, or the loaded engine exceeds the budget, or the same plan
                ended its process before; the fix holds settings that would fit. Or the battery is below its floor.
            BackendUnavailableError: The engine's library is missing or does not load here.
            EngineCrashed: Loading ended the engine's process.
            EngineError: The engine failed while it was loading.
        """
        is_checked = isinstance(bundle, Bundle)
        bundle = bundle if isinstance(bundle, Bundle) else Bundle.unchecked(bundle)
        budget, limits, device = budget or Budget(), limits or WorkerLimits(), device or probe_device()
        chosen_governor = choose_governor(governor, budget)
        refuse_to_load(chosen_governor, bundle.name, budget, force=force)
        threads = threads_left(chosen_governor, device.cores.best_threads) if threads is None else threads
        settings = LoadSettings(device, budget, backend, threads, context_length, force, isolated, limits)
        chosen = load_backend(backend or backend_for(bundle.manifest.target))
        loader = Loader(bundle, chosen, settings, expected_tokens=expected_tokens)
        if not is_checked:
            bundle.check(full_check=full_check)
        loader.open(loader.plan)
        return cls(loader, budget=budget, fixed_context=context_length, governor=chosen_governor)

    @property
    def plan(self) -> Plan:
        """What is loaded, and what was estimated for it."""
        return self._loader.plan

    @property
    def threads(self) -> int:
        """CPU threads it uses."""
        return self._loader.plan.threads

    @property
    def load_s(self) -> float:
        """How long the last (re)opening took."""
        return self._loader.load_s

    @property
    def is_isolated(self) -> bool:
        """Whether the engine has a process of its own."""
        return self._loader.is_isolated

    @property
    def n_restarts(self) -> int:
        """How often it was loaded again because its process was gone."""
        return self._loader.n_restarts

    def peak_rss_bytes(self) -> int | None:
        """Highest resident memory so far of the process the engine runs in."""
        return self._loader.peak_rss_bytes()

    @property
    def context_length(self) -> int:
        """Tokens the KV cache holds now."""
        return self._loader.plan.context_length

    @property
    def max_context_length(self) -> int:
        """Tokens it may hold: the fixed context, or what the bundle was converted for and memory allows."""
        return self._fixed_context or self._loader.max_context_length

    @property
    def native(self) -> NativeEngine:
        """The backend's engine, loaded again if its process has ended since, or the last attempt to load it failed.

        Raises:
            UsageError: The engine is closed.
            EngineCrashed: Its process ended too often.
            BudgetError, EngineError: It cannot be loaded now; the next use tries again.
        """
        if self._loader.is_closed:
            raise UsageError(f"the engine of {self.bundle.name} is closed", fix="open it again: Engine.open(bundle)")
        if self._loader.crash is not None:
            self._sessions.drop_caches()
            self._loader.reopen()
        elif self._loader.native is None:
            self._loader.open(self._loader.plan)
        native = self._loader.native
        assert native is not None
        return native

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
            self._sessions.close()
            self._loader.close()

    def hold(self, is_held: bool) -> None:
        """For the pacer; see `toolkit.pacing.Held`."""
        self._loader.hold(is_held)

    def interrupt_all(self, reason: FinishReason) -> None:
        """For the pacer: end what is being answered."""
        self._sessions.interrupt(reason)

    def free(self) -> None:
        """For the pacer: free all caches and the weights; the next `send` loads them again."""
        with self.lock:
            self._sessions.interrupt(FinishReason.BUDGET)  # one that was being begun when all others were
            self._sessions.drop_caches()
            self._loader.unload()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def make_room(self, n_tokens: int) -> bool:
        """For sessions: see to it that the KV cache can hold `n_tokens`; true if the engine had to open again.

        Raises:
            EngineError: Another session is answering, so its cache cannot be taken away.
            BudgetError, EngineError: The larger context does not load; what was loaded before is loaded again at the next use.
        """
        held = self.context_length
        if n_tokens <= held:
            self._has_answered = True
            return False
        wanted = round_context(max(n_tokens, 2 * held) if self._has_answered else n_tokens, self.max_context_length)
        self._has_answered = True
        if self._sessions.is_answering:
            raise EngineError(
                f"the context of {held} tokens is too small and cannot grow now",
                why=f"{n_tokens} are needed, and another session is answering",
                fix=f"wait for it, or open the engine with context_length={wanted}",
            )
        self._sessions.drop_caches()
        self._loader.unload()
        self._loader.open(self._loader.plan_for(wanted))
        return True

    @property
    def crash(self) -> EngineCrashed | None:
        """What ended the engine's process, until it is opened again; None while it lives or has none."""
        return self._loader.crash

    def note_success(self) -> None:
        """For sessions: an answer has ended well."""
        self._loader.succeed()

    def grant_tokens(self, n_tokens: int) -> int:
        """For sessions: how many of `n_tokens` the budget and the governor still allow.

        Raises:
            BudgetError: None.
        """
        return self.governed.grant(self._tokens.grant(n_tokens))

    def spend_tokens(self, n_tokens: int) -> None:
        """For sessions: count what was generated. Never waits for an engine."""
        self._tokens.spend(n_tokens)

    def larger_context_hint(self, n_tokens: int) -> str:
        """The end of a fix: the context that would hold `n_tokens`, if the bundle can."""
        if not self.max_context_length < n_tokens <= self.bundle.manifest.context_length:
            return ""
        try:
            self._loader.plan_for(n_tokens)
        except BudgetError:  # advice that leads to the next refusal is none
            return ""
        return f", or open the engine with --context {n_tokens}"
