from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_bundle import CONTEXT_LENGTH, tiny_bundle
from tests.toolkit.small_manifest import small_bundle
from toolkit.backends import BACKENDS
from toolkit.backends.base import Message
from toolkit.budget import Budget
from toolkit.bundle import Bundle
from toolkit.engine import Engine
from toolkit.errors import BackendUnavailableError, BudgetError, EngineError, FormatError, UsageError
from toolkit.manifest_reader import load_manifest
from toolkit.plan import make_plan

pytestmark = pytest.mark.usefixtures("module_cache")


@pytest.fixture
def engine(chat_bundle: Path) -> Iterator[Engine]:
    with Engine.open(chat_bundle) as engine:
        yield engine


def answer(engine: Engine, text: str = "check the pump", n_tokens: int = 24, **options: Any) -> str:
    with engine.session(**options) as session:
        return "".join(piece.text for piece in session.send(text, max_tokens=n_tokens))


@pytest.mark.parametrize(("target", "way_out"), [("litert", "toolkit transcribe"), ("onnx", "convert SOURCE --to litert")])
def test_a_speech_model_is_not_opened_for_prompts(tmp_path: Path, target: str, way_out: str) -> None:
    bundle = small_bundle(tmp_path / "speech", target=target, spec={"model_type": "whisper"})
    with pytest.raises(UsageError) as caught:
        Engine.open(bundle)
    assert caught.value.exit_code == 2 and caught.value.fix.startswith(way_out)


def test_an_engine_opens_a_folder_or_a_checked_bundle_and_says_what_it_uses(chat_bundle: Path) -> None:
    with Engine.open(Bundle.open(chat_bundle), context_length=300, threads=1) as engine:
        assert (engine.context_length, engine.max_context_length, engine.threads, engine.backend) == (300, 300, 1, "litert")
        assert engine.load_s > 0
        assert engine.bundle.manifest.name == "tiny-litert-fp32"
        assert len(engine.tokenize("check the pump")) < len("check the pump")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"threads": 0}, "threads"),
        ({"threads": -3}, "threads"),
        ({"threads": 4096}, "threads"),
        ({"context_length": 0}, "context"),
        ({"context_length": CONTEXT_LENGTH + 1}, "context"),
        ({"backend": "tensorrt"}, "tensorrt"),
    ],
)
def test_settings_an_engine_would_swallow_are_refused_before_it_loads(
    chat_bundle: Path, options: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.backends.litert.LiteRtBackend.open_engine", None)
    with pytest.raises(UsageError, match=named):
        Engine.open(chat_bundle, **options)


def test_a_target_without_a_backend_is_named(tmp_path: Path, tiny_litertlm: Path) -> None:
    folder = tiny_bundle(tmp_path / "tiny-coreml-fp32", model=tiny_litertlm, target="coreml")
    with pytest.raises(BackendUnavailableError, match="coreml"):
        Engine.open(folder)
    with pytest.raises(UsageError, match="coreml"):
        Engine.open(folder, backend="litert")


def test_an_import_error_inside_a_backend_is_not_called_an_unknown_name(chat_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "litert", "toolkit.backends.module_that_is_not_there")
    with pytest.raises(ModuleNotFoundError, match="module_that_is_not_there"):
        Engine.open(chat_bundle, backend="litert")


def test_a_file_the_engine_refuses_carries_the_engines_own_cause(tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(b"garbage" * 1000)
    folder = tiny_bundle(tmp_path / "bundle", model=tmp_path / "garbage")
    with pytest.raises(FormatError, match="model.litertlm") as caught:
        Engine.open(folder)
    assert "magic" in caught.value.why


def test_the_context_is_as_small_as_the_work_needs_and_grows_on_demand(chat_bundle: Path) -> None:
    with Engine.open(chat_bundle, expected_tokens=100) as engine:
        assert engine.context_length == 128
        short = answer(engine)
        assert engine.context_length == 128
        answer(engine, n_tokens=400)
        assert 400 < engine.context_length < CONTEXT_LENGTH
        assert answer(engine) == short
        answer(engine, n_tokens=CONTEXT_LENGTH)
        assert engine.context_length == engine.max_context_length == CONTEXT_LENGTH


def test_a_conversation_survives_the_growth_of_its_context(chat_bundle: Path) -> None:
    def talk(engine: Engine) -> list[str]:
        session = engine.session()
        asked = [("check the pump", 40), ("and the valve", 300), ("and the station", 40)]
        return ["".join(piece.text for piece in session.send(text, max_tokens=n)) for text, n in asked]

    with Engine.open(chat_bundle, expected_tokens=64) as growing, Engine.open(chat_bundle, context_length=2048) as fixed:
        assert talk(growing) == talk(fixed)
        assert growing.context_length < 2048


def test_a_context_cannot_grow_under_another_answer(chat_bundle: Path) -> None:
    with Engine.open(chat_bundle, expected_tokens=64) as engine:
        running = engine.session().send("check the pump", max_tokens=20)
        next(running)
        with pytest.raises(EngineError, match="cannot grow"):
            answer(engine, n_tokens=600)
        assert "".join(piece.text for piece in running)
        assert answer(engine, n_tokens=600)


def test_a_fixed_context_ends_a_long_answer_and_refuses_a_long_prompt(chat_bundle: Path) -> None:
    with Engine.open(chat_bundle, context_length=100) as engine:
        session = engine.session()
        list(session.send("check the pump", max_tokens=500))
        assert session.finish_reason == "length"
        assert session.metrics is not None
        assert session.metrics.n_prompt_tokens + session.metrics.n_generated_tokens == 100 == session.metrics.context_length
        with pytest.raises(UsageError, match="does not fit") as caught:
            list(session.send("check the pump"))
        assert "100 tokens" in caught.value.why
        assert answer(engine)


def test_two_sessions_do_not_see_each_other(engine: Engine) -> None:
    alone = [answer(engine, "check the pump"), answer(engine, "check the valve")]
    streams = [engine.session().send(text, max_tokens=24) for text in ("check the pump", "check the valve")]
    mixed = ["", ""]
    waiting = {0, 1}
    while waiting:
        for index in sorted(waiting):
            piece = next(streams[index], None)
            if piece is None:
                waiting.remove(index)
            else:
                mixed[index] += piece.text
    assert mixed == alone and alone[0] != alone[1]


def test_history_given_at_the_start_is_part_of_the_conversation(engine: Engine) -> None:
    history = [Message("user", "check the pump"), Message("assistant", "the pump is brown")]
    assert answer(engine, "and now", messages=history) != answer(engine, "and now")
    with pytest.raises(UsageError, match="alien"):
        engine.session(messages=[Message("alien", "x")])


def test_a_system_message_changes_the_answer(engine: Engine) -> None:
    assert answer(engine, system="the lazy dog") != answer(engine)


def test_a_base_model_refuses_a_chat_and_continues_text(base_bundle: Path) -> None:
    with Engine.open(base_bundle) as engine:
        with pytest.raises(UsageError, match="cannot chat") as caught:
            engine.session()
        assert "base model" in caught.value.why and "toolkit run" in caught.value.fix
        session = engine.plain_session()
        assert "".join(piece.text for piece in session.send("the quick brown", max_tokens=8))
        assert session.metrics is not None
        assert session.metrics.n_prompt_tokens == len(engine.tokenize("the quick brown")) + 1, "the start token counts"


def test_a_closed_engine_says_so_and_may_be_closed_again(chat_bundle: Path) -> None:
    engine = Engine.open(chat_bundle)
    session = engine.session()
    running = session.send("check the pump", max_tokens=400)
    next(running)
    engine.close()
    engine.close()
    assert list(running) == []
    assert session.finish_reason == "cancelled"
    with pytest.raises(UsageError, match="closed"):
        list(session.send("check the pump"))
    with pytest.raises(UsageError, match="closed"):
        engine.tokenize("x")


def test_weights_larger_than_the_budget_are_refused_before_they_load(chat_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.backends.litert.LiteRtBackend.open_engine", None)
    with pytest.raises(BudgetError, match="memory budget") as caught:
        Engine.open(chat_bundle, budget=Budget(memory="100KiB"))
    assert caught.value.exit_code == 3 and "100 KiB" in caught.value.why


def test_what_does_not_fit_is_not_hashed_first(chat_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.bundle.sha256_file", lambda *_: pytest.fail("it was hashed"))
    with pytest.raises(BudgetError, match="memory budget"):
        Engine.open(chat_bundle, budget=Budget(memory="100KiB"), full_check=True)


def measured_as(peak: int, step: int = 0) -> dict[str, Any]:
    """The `memory` of a manifest that claims a peak at 100 tokens, and `step` bytes more for each further one."""
    sizes = [(length, peak + step * (length - 100)) for length in (100, 200)]
    runs = [
        {
            "context_length": length,
            "is_first_start": False,
            "peak_rss_bytes": size,
            "anonymous_bytes": size,
            "mapped_bytes": 1,
            "address_space_bytes": size,
        }
        for length, size in sizes
    ]
    return {"measured": {"machine": "x86_64", "threads": 2, "runs": runs}}


def test_the_context_counts_before_anything_is_loaded(tmp_path: Path, tiny_litertlm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_bundle(tmp_path / "bundle", model=tiny_litertlm, memory=measured_as(100 * 2**20, 2**20))
    opened = BudgetError("reached the backend", fix="none")

    def open_engine(*_: Any, **__: Any) -> Any:
        raise opened

    monkeypatch.setattr("toolkit.backends.litert.LiteRtBackend.open_engine", open_engine)
    for context_length, stops_before in ((100, False), (101, True)):
        with pytest.raises(BudgetError) as caught:
            Engine.open(folder, budget=Budget(memory=100 * 2**20 + held_bytes()), context_length=context_length, isolated=False)
        assert (caught.value is not opened) is stops_before


def held_bytes() -> int:
    """What this process holds beyond a bare interpreter, with some to spare: it grows while it is asked."""
    from toolkit.loader import _held_before

    return _held_before() + 2**19


def test_forced_it_loads_all_the_same_and_says_so(chat_bundle: Path) -> None:
    with Engine.open(chat_bundle, budget=Budget(memory="100KiB"), force=True) as engine:
        assert engine.plan.is_forced and not engine.plan.fits
        with engine.session() as session:
            assert "".join(piece.text for piece in session.send("check the pump", max_tokens=8))
            assert session.metrics is not None and session.metrics.is_forced


@pytest.mark.parametrize("isolated", [False, True])
def test_an_engine_that_turns_out_larger_than_the_budget_is_closed(tmp_path: Path, tiny_litertlm: Path, isolated: bool) -> None:
    folder = tiny_bundle(tmp_path / "bundle", model=tiny_litertlm, memory=measured_as(2**20))
    budget = Budget(memory="30MiB" if isolated else 2**20 + held_bytes())
    with pytest.raises(BudgetError, match="memory budget") as caught:
        Engine.open(folder, budget=budget, isolated=isolated)
    assert "loaded" in caught.value.why
    with Engine.open(folder, budget=Budget(memory="64GiB"), isolated=isolated) as engine:
        assert answer(engine)


def test_a_token_budget_cuts_an_answer_and_then_refuses(chat_bundle: Path) -> None:
    with Engine.open(chat_bundle, budget=Budget(tokens=30)) as engine:
        session = engine.session()
        list(session.send("check the pump", max_tokens=20))
        assert session.finish_reason == "length"
        list(session.send("check the valve", max_tokens=20))
        assert session.finish_reason == "budget"
        assert session.metrics is not None and session.metrics.n_generated_tokens == 10
        with pytest.raises(BudgetError, match="used up"):
            list(session.send("check the station", max_tokens=20))


def test_a_time_budget_ends_an_answer(chat_bundle: Path) -> None:
    with Engine.open(chat_bundle, budget=Budget(seconds=0.2), context_length=CONTEXT_LENGTH) as engine:
        session = engine.session()
        text = "".join(piece.text for piece in session.send("check the pump", max_tokens=4000))
        assert session.finish_reason == "budget"
        said = (Message("user", "check the pump"), Message("assistant", text)) if text else ()  # nothing, if the machine is that busy
        assert session.messages == said


def test_repacked_weights_are_cached_per_bundle_outside_it(chat_bundle: Path, module_cache: Path) -> None:
    with Engine.open(chat_bundle) as engine:
        assert answer(engine)
    kept = [path for path in (module_cache / "engines").rglob("*") if path.is_file()]
    assert kept and all(engine.bundle.content_hash[:32] in str(path) for path in kept)
    assert sorted(path.name for path in chat_bundle.iterdir()) == ["manifest.json", "model.litertlm"]


@pytest.mark.parametrize("isolated", [True, False])
def test_a_cache_that_answered_is_noted_as_whole_also_when_its_process_is_ended(
    chat_bundle: Path, tmp_path: Path, isolated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONDEVICE_TOOLKIT_CACHE", str(tmp_path))
    with Engine.open(chat_bundle, isolated=isolated) as engine:
        assert not list(tmp_path.rglob("whole"))
        assert answer(engine)
    assert len(list(tmp_path.rglob("whole"))) == 1


def test_planning_writes_nothing(chat_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONDEVICE_TOOLKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("toolkit.engine.Loader.open", lambda self, plan: None)
    made: list[Any] = []
    monkeypatch.setattr("toolkit.loader.make_plan", lambda *given, **asked: (made.append(asked), make_plan(*given, **asked))[1])
    bundle = Bundle(chat_bundle, load_manifest(chat_bundle))
    Engine.open(bundle)
    assert len(made) == 1, "an opening is planned once"
    assert not (tmp_path / "cache").exists()


def test_without_a_writable_cache_the_engine_still_runs(chat_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ONDEVICE_TOOLKIT_CACHE", str(tmp_path / "file"))
    with Engine.open(chat_bundle) as engine:
        assert answer(engine)
