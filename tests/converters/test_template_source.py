"""A chat template is a stranger's program: whatever it does, it ends with three lines and costs bounded time and memory."""

from __future__ import annotations

import sys

import pytest

from converters import runtime_probe, template_source
from converters.runtime_probe import render_runtime
from converters.template import package_template
from converters.template_source import ask_source, death_blamed_on_template
from converters.template_texts import CONVERSATIONS, DIALOGUES
from toolkit.errors import FidelityError, FormatError, ToolkitError

BODY = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}A:"
NESTED_LOOPS = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
DOUBLING = "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"
NESTED_BRANCHES = "{% if m.a %}{% if m.b %}{% continue %}{% endif %}{% endif %}"

TOO_SLOW = {
    "nested loops": NESTED_LOOPS,
    "branches that double when they are rewritten": f"{{% for m in messages %}}{NESTED_BRANCHES * 40}{{% endfor %}}",
    "a filter that counts far": "{{ lipsum(n=10**7) }}",
}
TOO_LARGE = {
    "a huge constant": "{{ 'a' * 10**9 }}",
    "a string that doubles": DOUBLING,
    "a wide field": "{{ '%999999999d' % 1 }}",
    "lookups that double when they are rewritten": "{{ messages[0]" + ".get('x', {})" * 60 + " }}",
    "an indentation": "{{ messages|tojson(indent=10**9) }}",
}
TOO_LONG = {"a long constant": "{{ 'a' * 2 * 10**6 }}", "a long loop": "{% for i in range(99999) %}{{ 'a' * 20 }}{% endfor %}"}
NO_TEXT = {
    "a giant range": "{% for i in range(10**9) %}x{% endfor %}",
    "a macro that doubles": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(2000) }}",
    "a macro without end": "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
}


def refusal(template: str) -> ToolkitError:
    with pytest.raises(ToolkitError) as caught:
        package_template(template + BODY)
    assert caught.value.why and "\n" not in caught.value.why
    return caught.value


@pytest.mark.parametrize("name", TOO_SLOW)
def test_a_template_that_does_not_end_is_ended(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_source, "CPU_S", 2.0)
    error = refusal(TOO_SLOW[name])
    assert isinstance(error, FormatError) and "does not end" in error.why


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much memory is in use")
@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_template_cannot_fill_the_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_source, "MEMORY_BYTES", 2**28)
    error = refusal(TOO_LARGE[name])
    assert isinstance(error, FormatError) and "more than 256 MiB of memory" in error.why


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_conversation_of_megabytes_is_refused(name: str) -> None:
    error = refusal(TOO_LONG[name])
    assert isinstance(error, FormatError) and "1048576 are allowed" in error.why


@pytest.mark.parametrize("name", NO_TEXT)
def test_what_jinja2_itself_refuses_to_go_through_renders_nothing(name: str) -> None:
    error = refusal(NO_TEXT[name])
    assert isinstance(error, FidelityError) and "renders no conversation" in error.what


def test_a_template_that_only_the_runtime_cannot_bear_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_probe, "CPU_S", 2.0)
    with pytest.raises(FormatError, match="takes too much") as caught, death_blamed_on_template("the runtime"):
        render_runtime(NESTED_LOOPS + BODY, CONVERSATIONS)
    assert "the runtime does not end" in caught.value.why


def test_a_runtime_that_runs_out_of_memory_is_the_templates_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_probe, "MEMORY_BYTES", 2**30)
    with pytest.raises(FormatError, match="takes too much"), death_blamed_on_template("the runtime"):
        render_runtime(DOUBLING + BODY, CONVERSATIONS)


def test_the_child_answers_what_this_process_would() -> None:
    child, here = ask_source(BODY, {}, ["</s>"]), template_source.answer(BODY, {}, ["</s>"])
    assert child == here
    assert len(child.rendered) == len(CONVERSATIONS) and len(child.dialogues) == len(DIALOGUES)
    assert child.rendered[0] == "user: What is the capital of France?\nA:"
