"""Answers held to a schema, on every backend that claims it: random weights, which know no JSON, have to write it all the same."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from toolkit.answer import FinishReason
from toolkit.backends.constraint import Grammars
from toolkit.diagnosis import EngineReport
from toolkit.engine import Engine
from toolkit.errors import BackendUnavailableError, EngineError, UsageError

PROMPT = "check the pump"


@dataclass
class Report:
    state: Literal["dry", 'a "wet" é']
    is_open: bool
    valves: tuple[Literal[1, 22], ...]


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "state": {"enum": ["dry", 'a "wet" é']},
        "is_open": {"type": "boolean"},
        "valves": {"type": "array", "items": {"enum": [1, 22]}, "maxItems": 3},
    },
    "required": ["state", "is_open", "valves"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine(backend_name: str, tiny: Path, module_cache: Path) -> Iterator[Engine]:
    with Engine.open(tiny, backend=backend_name, context_length=256, threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def constrained(engine: Engine, reports: dict[str, EngineReport]) -> Engine:
    if not reports[engine.backend].capabilities["constraints"]:
        with engine.session() as session, pytest.raises(BackendUnavailableError):
            list(session.send(PROMPT, schema=SCHEMA))
        pytest.skip(f"{engine.backend} claims no constraints, and refuses a schema")
    return engine


def is_right(value: Any) -> bool:
    return (
        set(value) == {"state", "is_open", "valves"}
        and value["state"] in ("dry", 'a "wet" é')
        and isinstance(value["is_open"], bool)
        and len(value["valves"]) <= 3
        and set(value["valves"]) <= {1, 22}
    )


def test_only_litert_claims_none(reports: dict[str, EngineReport]) -> None:
    claims = {name: report.capabilities["constraints"] for name, report in reports.items() if report.is_available}
    assert [name for name, is_there in claims.items() if not is_there] in ([], ["litert"])


def test_random_weights_write_values_of_the_schema_at_any_temperature(constrained: Engine) -> None:
    texts = set()
    for seed, temperature in ((0, 0.0), (1, 1.0), (2, 100.0), (3, 100.0), (4, 100.0)):
        with constrained.session(temperature=temperature, top_k=311, top_p=1.0, seed=seed) as session:
            text = "".join(piece.text for piece in session.send(PROMPT, max_tokens=150, schema=SCHEMA))
            assert session.finish_reason is FinishReason.STOP and is_right(json.loads(text))
            assert session.parsed == json.loads(text)
            texts.add(text)
    assert len(texts) > 1, "the schema leaves a choice, and the model makes it"


def test_without_a_schema_the_same_weights_write_none(constrained: Engine) -> None:
    """The must-fail twin: it is the schema that makes the difference."""
    with constrained.session() as session:
        text = "".join(piece.text for piece in session.send(PROMPT, max_tokens=60))
        with pytest.raises(ValueError):
            json.loads(text)
        assert session.parsed is None


def test_a_dataclass_comes_back_as_one_and_the_next_turn_goes_on_from_the_cache(constrained: Engine) -> None:
    with constrained.session(temperature=100.0, top_k=311, top_p=1.0, seed=5) as session:
        list(session.send(PROMPT, max_tokens=100, schema=Report))
        assert isinstance(session.parsed, Report) and isinstance(session.parsed.valves, tuple)
        list(session.send("and the valve?", max_tokens=100, schema=Report))
        assert isinstance(session.parsed, Report) and session.metrics is not None
        n_added, history = session.metrics.n_prompt_tokens, session.messages[:2]
    with constrained.session(messages=history) as fresh:
        list(fresh.send("and the valve?", max_tokens=100))
        assert fresh.metrics is not None and n_added < fresh.metrics.n_prompt_tokens and fresh.parsed is None


def test_a_cut_answer_says_that_it_was_cut_and_has_no_value(constrained: Engine) -> None:
    with constrained.session() as session:
        text = "".join(piece.text for piece in session.send(PROMPT, max_tokens=6, schema=SCHEMA))
        assert session.finish_reason is FinishReason.LENGTH and session.parsed is None
        assert text.startswith("{") and not text.endswith("}")


def test_a_listener_that_leaves_gets_no_value_and_asyncio_gets_one(constrained: Engine) -> None:
    with constrained.session() as session:
        for _ in session.send(PROMPT, max_tokens=100, schema=SCHEMA):
            break
        assert session.parsed is None

    async def ask() -> Any:
        with constrained.session() as other:
            async for _ in other.asend(PROMPT, max_tokens=150, schema=SCHEMA):
                assert other.parsed is None
            return other.parsed

    assert is_right(asyncio.run(ask()))


def test_what_no_grammar_can_hold_is_refused_and_the_engine_is_as_good_as_before(constrained: Engine) -> None:
    for bad in ({"type": "string", "pattern": "(("}, {"type": "integer", "minimum": 5, "maximum": 3}):
        with constrained.session() as session, pytest.raises(UsageError) as caught:
            list(session.send(PROMPT, max_tokens=20, schema=bad))
        assert caught.value.why and caught.value.fix and caught.value.exit_code == 2
    with constrained.session() as session:
        list(session.send(PROMPT, max_tokens=150, schema=SCHEMA))
        assert is_right(session.parsed)


def test_litert_names_the_targets_that_can(chat_bundle: Path, module_cache: Path) -> None:
    with Engine.open(chat_bundle, context_length=256, threads=1) as engine, engine.session() as session:
        with pytest.raises(BackendUnavailableError, match="onnx") as caught:
            list(session.send(PROMPT, schema=SCHEMA))
        assert caught.value.exit_code == 5 and len(str(caught.value).splitlines()) == 3
        assert "".join(piece.text for piece in session.send(PROMPT, max_tokens=4)), "without one it answers"


def test_without_llguidance_the_error_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(BackendUnavailableError, match="pip install llguidance") as caught:
        Grammars(tmp_path / "tokenizer.json", [2]).begin("{}")
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("data", [None, b"", b"{}", b"\xff", b'{"model": {"type": "WordLevel"}}'])
def test_a_tokenizer_that_cannot_be_read_is_an_error_of_the_engine(data: bytes | None, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    if data is not None:
        (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(EngineError, match="tokenizer.json"):
        Grammars(tmp_path / "tokenizer.json", [2]).begin("{}")


def test_a_stop_token_the_tokenizer_has_not_is_an_error(targets_folder: Path) -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(EngineError, match="tokenizer.json"):
        Grammars(targets_folder / "tiny" / "tokenizer.json", [311_000]).begin("{}")


def test_weights_may_have_more_tokens_than_the_tokenizer_or_fewer(targets_folder: Path) -> None:
    pytest.importorskip("llguidance")
    import numpy as np

    grammars = Grammars(targets_folder / "tiny" / "tokenizer.json", [2])
    for n_vocab in (280, 311, 320, 400):
        constraint = grammars.begin('{"type": "boolean"}')
        logits = np.arange(n_vocab, dtype=np.float32)
        kept = constraint.allowed(logits)
        allowed = np.flatnonzero(np.isfinite(kept))
        assert kept.shape == (n_vocab,) and 0 < len(allowed) < 40 and (kept[allowed] == logits[allowed]).all()
        assert logits[5] == 5.0, "the engine's own array stays as it is"
        with pytest.raises(ValueError, match="cannot be followed"):
            constraint.take(5 if 5 not in allowed else 6)
        with pytest.raises(ValueError, match="cannot be followed"):
            constraint.allowed(logits)
