"""What a session does with a schema: passes it on, and believes no engine that says it has kept to it."""

from __future__ import annotations

import pytest

from tests.toolkit.fake_backend import END, FakeBackend
from toolkit.engine import Engine
from toolkit.errors import EngineError, UsageError
from toolkit.session import FinishReason

SCHEMA = {"type": "boolean"}


def test_the_value_belongs_to_the_last_answer_only(fake_engine: Engine, backend: FakeBackend) -> None:
    backend.engine.answers = [f"true{END}", f"false{END}"]
    session = fake_engine.session()
    list(session.send("a", schema=SCHEMA))
    assert session.parsed is True
    list(session.send("b"))
    assert session.parsed is None


def test_an_engine_that_did_not_keep_to_the_schema_is_an_error_and_what_it_said_is_kept(fake_engine: Engine, backend: FakeBackend) -> None:
    backend.engine.answers = [f"yes{END}", f"true{END}"]
    session = fake_engine.session()
    shown = []
    with pytest.raises(EngineError, match="not what was asked for"):
        for piece in session.send("a", schema=SCHEMA):
            shown.append(piece.text)
    assert "".join(shown) == "yes" == session.messages[-1].content
    assert session.parsed is None and session.finish_reason is FinishReason.STOP
    list(session.send("b", schema=SCHEMA))
    assert session.parsed is True, "the session goes on"


def test_a_value_that_is_cut_is_no_value_although_it_parses(fake_engine: Engine, backend: FakeBackend) -> None:
    backend.engine.answers = ["12"]
    session = fake_engine.session()
    list(session.send("a", schema={"type": "integer"}, max_tokens=2))
    assert session.finish_reason is FinishReason.LENGTH and session.parsed is None


def test_stop_strings_beside_a_schema_are_refused_before_the_engine(fake_engine: Engine, backend: FakeBackend) -> None:
    session = fake_engine.session()
    for options in ({"stop": "}"}, {"stop": ["a", "b"]}):
        with pytest.raises(UsageError, match="stop strings"):
            session.send("a", schema=SCHEMA, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the type 'pump'"):
        session.asend("a", schema={"type": "pump"})
    assert backend.engine.started == []
