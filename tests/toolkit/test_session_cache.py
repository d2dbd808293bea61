"""What is prefilled again and what is not, on a backend that records it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.toolkit.fake_backend import END, END_ID, FakeBackend, chat_template
from tests.toolkit.small_manifest import small_bundle
from toolkit.backends.base import Message
from toolkit.engine import Engine
from toolkit.errors import EngineError, UsageError
from toolkit.session import FinishReason, Session


def say(session: Session, text: str, max_tokens: int = 50) -> str:
    return "".join(piece.text for piece in session.send(text, max_tokens=max_tokens))


def prefilled(backend: FakeBackend) -> list[str]:
    return [text for _, text in backend.engine.started]


def test_after_an_answer_that_ended_by_itself_the_next_turn_begins_behind_the_stop_token(fake_engine: Engine, backend: FakeBackend) -> None:
    backend.engine.answers = [f"yes{END}", f"no{END}", f"so{END}"]
    session = fake_engine.session()
    assert [say(session, text) for text in "abc"] == ["yes", "no", "so"]
    assert prefilled(backend) == [f"<user>a{END}\n<assistant>", f"\n<user>b{END}\n<assistant>", f"\n<user>c{END}\n<assistant>"]
    assert session.finish_reason is FinishReason.STOP
    first, second, third = prefilled(backend)
    assert f"{first}yes{END}{second}no{END}{third}" == chat_template([*session.messages[:4], Message("user", "c")])


def test_after_a_cut_answer_the_next_turn_puts_the_stop_token_first(fake_engine: Engine, backend: FakeBackend) -> None:
    backend.engine.answers = ["yes", "no!", "so!"]
    session = fake_engine.session()
    for text in "abc":
        say(session, text, max_tokens=3)
        assert session.finish_reason is FinishReason.LENGTH
    assert prefilled(backend)[1:] == [f"{END}\n<user>b{END}\n<assistant>", f"{END}\n<user>c{END}\n<assistant>"]


def test_metrics_count_the_new_tokens_and_the_start_token_once(fake_engine: Engine, backend: FakeBackend) -> None:
    backend.engine.answers = [f"yes{END}", f"no{END}"]
    backend.engine.n_start_tokens = 1
    session = fake_engine.session()
    pieces = list(session.send("a", max_tokens=50))
    assert [piece.n_tokens for piece in pieces] == [1, 1, 1]
    say(session, "b")
    assert session.metrics is not None
    assert session.metrics.n_prompt_tokens == len(prefilled(backend)[1])


def everything(backend: FakeBackend) -> bool:
    return prefilled(backend)[-1].startswith("<user>a")


def test_another_limit_needs_a_new_cache(fake_engine: Engine, backend: FakeBackend) -> None:
    backend.engine.answers = [f"yes{END}", f"no{END}"]
    session = fake_engine.session()
    say(session, "a", max_tokens=50)
    say(session, "b", max_tokens=51)
    assert everything(backend) and backend.engine.sessions[0].n_closed == 1


def test_a_template_that_changes_what_was_said_needs_a_new_cache(fake_engine: Engine, backend: FakeBackend) -> None:
    def trimming(messages: Sequence[Message]) -> str:
        return chat_template([Message(message.role, message.content.strip()) for message in messages])

    backend.engine.template = trimming
    backend.engine.answers = [f"yes {END}", f"no{END}"]
    session = fake_engine.session()
    say(session, "a")
    say(session, "b")
    assert everything(backend)


def test_a_tokenizer_that_splits_the_end_differently_needs_a_new_cache(fake_engine: Engine, backend: FakeBackend) -> None:
    """Like SentencePiece with a dummy prefix: the first character of any text has another id."""
    backend.engine.tokens_of = lambda text: [ord(char) if index or char == END else -ord(char) for index, char in enumerate(text)]
    backend.engine.answers = [f"yes{END}", f"no{END}"]
    session = fake_engine.session()
    say(session, "a")
    say(session, "b")
    assert everything(backend)


def test_a_stop_string_needs_a_new_cache(fake_engine: Engine, backend: FakeBackend) -> None:
    backend.engine.answers = [f"yes{END}", f"no{END}"]
    session = fake_engine.session()
    assert "".join(piece.text for piece in session.send("a", max_tokens=50, stop="s")) == "ye"
    say(session, "b")
    assert everything(backend) and "yes" not in prefilled(backend)[-1]
    assert backend.engine.sessions[0].n_cancelled >= 1


def test_another_stop_token_than_the_templates_needs_a_new_cache(fake_engine: Engine, backend: FakeBackend) -> None:
    backend.engine.template = lambda messages: "".join(f"<{message.role}>{message.content}." for message in messages)
    backend.engine.answers = [f"yes{END}", f"no{END}"]
    session = fake_engine.session()
    say(session, "a")
    say(session, "b")
    assert everything(backend)


def test_an_engine_that_fails_keeps_what_was_shown_and_the_session_usable(fake_engine: Engine, backend: FakeBackend) -> None:
    backend.engine.answers, backend.engine.error = ["ye"], "UNKNOWN: boom"
    session = fake_engine.session()
    with pytest.raises(EngineError, match="boom"):
        say(session, "a")
    assert session.finish_reason is FinishReason.CRASHED
    assert session.messages == (Message("user", "a"), Message("assistant", "ye"))
    backend.engine.answers, backend.engine.error = [f"no{END}"], None
    assert say(session, "b") == "no"
    assert everything(backend)


def test_an_error_at_the_very_end_of_the_context_is_a_full_context(fake_engine: Engine, backend: FakeBackend) -> None:
    backend.engine.answers, backend.engine.error = ["yes"], "Max number of tokens reached."
    session = fake_engine.session()
    assert say(session, "a", max_tokens=3) == "yes"
    assert session.finish_reason is FinishReason.LENGTH


def test_a_refused_prompt_leaves_the_conversation_as_it_was(fake_engine: Engine, backend: FakeBackend) -> None:
    backend.engine.answers = [f"yes{END}", f"no{END}"]
    session = fake_engine.session()
    say(session, "a")
    with pytest.raises(UsageError, match="does not fit"):
        say(session, "b" * 2000)
    assert len(session.messages) == 2
    assert say(session, "b") == "no"


def test_a_conversation_that_outgrew_its_context_goes_on_in_a_larger_one(backend: FakeBackend, tmp_path: Path, own_folders: Path) -> None:
    backend.engine.answers = [f"yes{END}", f"no{END}", f"so{END}"]
    with Engine.open(small_bundle(tmp_path / "bundle", stop_token_ids=(END_ID,)), expected_tokens=64) as engine:
        session = engine.session()
        for text in ("a", "b" * 20, "c" * 100):
            say(session, text, max_tokens=30)
    assert backend.opened == [64, 128, 256]
    assert everything(backend)


def test_a_plain_session_goes_on_from_its_own_text(fake_engine: Engine, backend: FakeBackend) -> None:
    backend.engine.answers = ["yes", "no!"]
    session = fake_engine.plain_session()
    say(session, "a", max_tokens=3)
    say(session, "b", max_tokens=3)
    assert prefilled(backend) == ["a", "b"]
    assert [message.content for message in session.messages] == ["a", "yes", "b", "no!"]


def test_a_plain_session_drops_a_stop_token_that_is_not_in_its_text(fake_engine: Engine, backend: FakeBackend) -> None:
    backend.engine.answers = [f"yes{END}", f"no{END}"]
    session = fake_engine.plain_session()
    say(session, "a")
    say(session, "b")
    assert prefilled(backend) == ["a", "ayesb"]
