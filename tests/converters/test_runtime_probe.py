from __future__ import annotations

import sys

import pytest

from converters.litertlm import PackagedTokenizer
from converters.runtime_probe import ANSWER, answer, encode_in_runtime, render_runtime
from toolkit.errors import BackendUnavailableError, FormatError

TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content[0].text }};{% endfor %}{% if add_generation_prompt %}>{% endif %}"


def test_conversations_are_rendered_whole_in_the_order_asked() -> None:
    user, system = {"role": "user", "content": "é"}, {"role": "system", "content": "s"}
    first, second = render_runtime(TEMPLATE, [[user], [system, user]]).rendered
    assert (first.text, second.text) == ("user:é;>", "system:s;user:é;>")


def test_a_dialogue_shows_what_each_turn_adds_after_an_answer_and_a_stop_token() -> None:
    (dialogue,) = render_runtime(TEMPLATE, [], [("x", "y")]).dialogues
    assert dialogue.prompts == ("user:x;>", "user:y;>") and not dialogue.error
    shown = "{% for m in messages %}{{ m.content[0].text }}{% endfor %}{% if add_generation_prompt %}>{{ messages|length }}{% endif %}"
    (counted,) = render_runtime(shown, [], [("x", "y", "z")]).dialogues
    assert counted.prompts == ("x>1", "y>3", "z>5"), f"the answers {ANSWER!r} are part of the history the runtime keeps"


def test_a_refusal_carries_the_runtimes_own_words_on_one_line() -> None:
    (rendered,) = render_runtime("{{ raise_exception('not\nthis') }}", [[{"role": "user", "content": "x"}]]).rendered
    assert rendered.text is None and "not this" in rendered.error and "\n" not in rendered.error


def test_an_empty_text_is_a_text_and_no_refusal() -> None:
    (rendered,) = render_runtime("{% if false %}x{% endif %}", [[{"role": "user", "content": "x"}]]).rendered
    assert rendered.text == "" and not rendered.error


def test_a_tokenizer_the_runtime_cannot_read_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(FormatError, match="tokenizer.json cannot be used"):
        encode_in_runtime(PackagedTokenizer("huggingface", b"{}", 0, ""), ["a"], 8)


def test_a_missing_runtime_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litert_lm", None)
    with pytest.raises(BackendUnavailableError) as caught:
        answer("nowhere.litertlm", cpu_s=1, memory_bytes=2**30)
    assert "litert_lm" in caught.value.why and "pip install" in caught.value.fix
