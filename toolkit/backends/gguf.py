"""llama.cpp: runs GGUF bundles, through its own server over loopback."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from toolkit.backends.base import BackendFacts, Capabilities, Counts, Message, Sampling, Sink, StreamEnd
from toolkit.backends.constraint import FORM, check_schema
from toolkit.backends.llama_client import LlamaEvents
from toolkit.backends.llama_server import LlamaServer, probe_server, start_server
from toolkit.backends.opening import refused_files
from toolkit.backends.streams import StreamThreads, check_room
from toolkit.errors import EngineError, ToolkitError, one_line
from toolkit.limits import check_context_length, check_threads

if TYPE_CHECKING:
    from toolkit.bundle import Bundle

_LEAST_CONTEXT = 2  # with one token llama.cpp aborts the process; sessions count with what was asked for


class GgufBackend:
    """See `toolkit.backends.base.Backend`."""

    name = "gguf"
    targets = ("gguf",)

    def probe(self) -> BackendFacts:
        version, uses, detail = probe_server()
        return BackendFacts(version, uses, detail, Capabilities(constraints=True))

    def open_engine(self, bundle: Bundle, *, context_length: int, threads: int) -> GgufEngine:
        check_threads(threads)
        check_context_length(context_length, most=bundle.manifest.context_length)
        try:
            server = start_server(bundle.entry_path, context_length=max(_LEAST_CONTEXT, context_length), threads=threads)
        except ToolkitError:
            raise
        except Exception as error:
            raise refused_files(bundle, error, by="llama.cpp") from error
        try:
            return GgufEngine(server, bundle, context_length)
        except BaseException:
            server.stop()
            raise


class GgufEngine:
    """See `toolkit.backends.base.NativeEngine`. The server has one slot: sessions take turns, and one that finds another's
    tokens in it prefills its own again."""

    def __init__(self, server: LlamaServer, bundle: Bundle, context_length: int) -> None:
        self.client, self.context_length = server.client, context_length
        self._server, self._bundle = server, bundle
        self.start_ids = tuple(self._ids("", add_special=True))
        self.n_start_tokens = len(self.start_ids)
        self.streams = StreamThreads("gguf")
        self._turn_end: list[int] | None = None

    def tokenize(self, text: str) -> list[int]:
        return self._ids(text, add_special=False)

    def _ids(self, text: str, *, add_special: bool) -> list[int]:
        answer = self.client.post("/tokenize", {"content": text, "add_special": add_special, "parse_special": True})
        return [int(token_id) for token_id in answer.get("tokens", ())]

    def render(self, messages: Sequence[Message]) -> str:
        given = [{"role": message.role, "content": message.content} for message in messages]
        try:
            rendered = str(self.client.post("/apply-template", {"messages": given}).get("prompt", ""))
        except EngineError as error:
            why = error.why
        else:
            if rendered:
                return rendered
            why = "it rendered nothing"
        raise EngineError("the bundle's chat template failed", why=why, fix=f"check the bundle: toolkit verify {self._bundle.path}")

    def turn_end(self) -> list[int]:
        """The stop token that the template puts after an answer; the first one where there is no template."""
        if self._turn_end is None:
            stops, mark = self._bundle.manifest.stop_token_ids, "zqxz"
            self._turn_end = list(stops[:1])
            with suppress(EngineError):
                rendered = self.render([Message("user", "a"), Message("assistant", mark), Message("user", "b")])
                after = self.tokenize(rendered.rpartition(mark)[2])
                self._turn_end = [token_id for token_id in after if token_id in stops][:1] or self._turn_end
        return self._turn_end

    def session(self, sampling: Sampling, *, max_tokens: int) -> GgufSession:
        return GgufSession(self, sampling, max_tokens=max_tokens)

    def close(self) -> None:
        self.streams.join()
        self._server.stop()


class GgufSession:
    """See `toolkit.backends.base.NativeSession`. The KV cache is the server's; the session knows which tokens it should hold."""

    def __init__(self, engine: GgufEngine, sampling: Sampling, *, max_tokens: int) -> None:
        self._engine, self._max_tokens = engine, max_tokens
        self._choice = _choice(sampling)
        self._ids: list[int] = []
        self._events: LlamaEvents | None = None
        self._is_closed = False
        self._counts = Counts(0, 0, None, None)

    def start(self, text: str, *, sink: Sink, schema: str | None = None) -> None:
        if self._is_closed:
            raise EngineError("the session is closed", fix="begin a new one: engine.session()")
        added = [*(() if self._ids else self._engine.start_ids), *self._engine.tokenize(text)]
        prompt, most = [*self._ids, *added], self._engine.context_length
        check_room(len(added), n_held=len(self._ids), context_length=most)
        n_predict = min(self._max_tokens, most - len(prompt))
        body = {"prompt": prompt, "n_predict": n_predict, "stream": True, "cache_prompt": True, "return_tokens": True, **self._choice}
        if schema is not None:
            check_schema(schema)
            body["json_schema"] = {**json.loads(schema), "x-guidance": FORM}
        self._events = events = self._engine.client.stream("/completion", body)
        self._counts = Counts(len(added), 0, None, None)
        self._engine.streams.run(lambda: self._stream(events, prompt, len(added), sink))

    def _stream(self, events: LlamaEvents, prompt: list[int], n_added: int, sink: Sink) -> None:
        end, pieces, generated = StreamEnd(), list[str](), list[int]()
        try:
            for event in events:
                generated += [int(token_id) for token_id in event.get("tokens", ())]
                if text := str(event.get("content") or ""):
                    pieces.append(text)
                    sink(text)
                if event.get("stop"):
                    self._finish(event, n_added)
                    self._ids = [*prompt, *self._held(event, generated, "".join(pieces))]
        except EngineError as error:
            end = StreamEnd(error.why or error.what)
        except Exception as error:  # an answer that is no event of this server's
            end = StreamEnd(one_line(error))
        sink(end)

    def _finish(self, event: dict[str, Any], n_added: int) -> None:
        timings = event.get("timings") or {}
        prefill, decode = timings.get("prompt_per_second"), timings.get("predicted_per_second")
        self._counts = Counts(n_added, int(event["tokens_predicted"]), prefill or None, decode or None)

    def _held(self, event: dict[str, Any], told: list[int], text: str) -> list[int]:
        """Tokens of the answer, its stop token included. The server tells none that left a character unfinished, and not which
        stop token it was: then the text is tokenized again, and the stop token is the one the template puts there. If the cache
        holds something else after all, the server finds that and prefills from there on."""
        has_stopped = event.get("stop_type") == "eos"
        is_whole = len(told) == self._counts.n_generated_tokens - has_stopped
        ids = told if is_whole else self._engine.tokenize(text)
        return [*ids, *self._engine.turn_end()] if has_stopped else ids

    def cancel(self) -> None:
        if (events := self._events) is not None:
            events.cancel()

    def counts(self) -> Counts:
        return self._counts

    def close(self) -> None:
        self._is_closed = True
        self.cancel()


def _choice(sampling: Sampling) -> dict[str, Any]:
    """How the server is to choose tokens: the contract's order, and none of what it adds by itself."""
    if sampling.temperature == 0:
        return {"samplers": ["top_k"], "top_k": 1, "temperature": 0.0, "seed": sampling.seed}
    order = {"samplers": ["top_k", "top_p", "temperature"], "seed": sampling.seed}
    return {**order, "top_k": sampling.top_k, "top_p": sampling.top_p, "temperature": sampling.temperature}


BACKEND = GgufBackend()
