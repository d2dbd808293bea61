"""What a session does with a schema: passes it on, and believes no engine that says it has kept to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.toolkit.fake_backend import END, END_ID, FakeBackend
from tests.toolkit.small_manifest import small_bundle
from toolkit.bundle import Bundle
from toolkit.engine import Engine
from toolkit.errors import EngineError, UsageError
from toolkit.session import FinishReason

SCHEMA = {"type": "boolean"}


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    backend = FakeBackend()
    monkeypatch.setattr("toolkit.engine.load_backend", lambda name: backend)
    return backend


@pytest.fixture
def engine(backend: FakeBackend, tmp_path: Path, own_folders: Path) -> Iterator[Engine]:
    bundle = Bundle.open(small_bundle(tmp_path / "bundle", stop_token_ids=(END_ID,)))
    with Engine.open(bundle, context_length=1000) as engine:
        yield engine


def test_the_value_belongs_to_the_last_answer_only(engine: Engine, backend: FakeBackend) -> None:
    backend.engine.answers = [f"true{END}", f"false{END}"]
    session = engine.session()
    list(session.send("a", schema=SCHEMA))
    assert session.parsed is True
    list(session.send("b"))
    assert session.parsed is None


def test_an_engine_that_did_not_keep_to_the_schema_is_an_error_and_what_it_said_is_kept(engine: Engine, backend: FakeBackend) -> None:
    backend.engine.answers = [f"yes{END}", f"true{END}"]
    session = engine.session()
    shown = []
    with pytest.raises(EngineError, match="not what was asked for"):
        for piece in session.send("a", schema=SCHEMA):
            shown.append(piece.text)
    assert "".join(shown) == "yes" == session.messages[-1].content
    assert session.parsed is None and session.finish_reason is FinishReason.STOP
    list(session.send("b", schema=SCHEMA))
    assert session.parsed is True, "the session goes on"


def test_a_value_that_is_cut_is_no_value_although_it_parses(engine: Engine, backend: FakeBackend) -> None:
    backend.engine.answers = ["12"]
    session = engine.session()
    list(session.send("a", schema={"type": "integer"}, max_tokens=2))
    assert session.finish_reason is FinishReason.LENGTH and session.parsed is None


def test_stop_strings_beside_a_schema_are_refused_before_the_engine(engine: Engine, backend: FakeBackend) -> None:
    session = engine.session()
    for options in ({"stop": "}"}, {"stop": ["a", "b"]}):
        with pytest.raises(UsageError, match="stop strings"):
            session.send("a", schema=SCHEMA, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the type 'pump'"):
        session.asend("a", schema={"type": "pump"})
    assert backend.engine.started == []
