from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from converters import template as module
from converters import template_source
from converters.runtime_probe import render_runtime
from converters.template import PackagedTemplate, package_template
from converters.template_source import render_transformers
from converters.template_texts import CONVERSATIONS
from converters.template_translation import translate_template
from tests.converters.chat_templates import CHATML, EXAMPLES, INSTRUCTIONS, PYTHON, THINKING, TURNS, Example
from toolkit.errors import FidelityError, FormatError


def packaged(example: Example) -> PackagedTemplate:
    return package_template(example.template, special_tokens=example.special_tokens, stop_texts=example.stop_texts)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_runtime_renders_each_format_as_transformers_does(name: str) -> None:
    example = EXAMPLES[name]
    done = packaged(example)
    assert done.chat and done.template
    assert done.verified_conversations >= 20
    assert done.exact_turns is example.exact_turns


@pytest.mark.parametrize("name", EXAMPLES)
def test_one_changed_constant_anywhere_in_the_output_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def mutant(*arguments: object) -> str:
        written = translate_template(*arguments)  # type: ignore[arg-type]
        changed = written.replace('"<answer"', '"<anser"').replace("assistant\\n", "assistant ").replace("model\\n", "model ")
        changed = changed.replace("<|end_header_id|>", "<|end_header|>").replace("[INST] ", "[INST]").replace("(end -%}", "(end -%}")
        changed = changed.replace('{{- "\\n" -}}', '{{- " " -}}')
        assert changed != written
        return changed

    monkeypatch.setattr(template_source, "translate_template", mutant)
    monkeypatch.setattr(module, "ask_source", template_source.answer)
    with pytest.raises(FidelityError, match="does not say in the LiteRT-LM runtime") as caught:
        packaged(EXAMPLES[name])
    assert "expected" in caught.value.why and "got" in caught.value.why
    assert "\n" not in caught.value.why


def test_the_checkpoints_template_unchanged_would_fail_in_the_runtime() -> None:
    answers = render_runtime(CHATML.template, CONVERSATIONS)
    assert all("unsupported types string and sequence" in rendered.error for rendered in answers.rendered)


def test_without_the_cut_a_dialogue_loses_what_follows_the_stop_token(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packaged(CHATML).exact_turns
    monkeypatch.setattr(template_source, "turn_boundary", lambda *_: None)
    monkeypatch.setattr(module, "ask_source", template_source.answer)
    assert not packaged(CHATML).exact_turns


def test_without_the_cut_a_template_that_rewrites_history_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_source, "turn_boundary", lambda *_: None)
    monkeypatch.setattr(module, "ask_source", template_source.answer)
    with pytest.raises(FidelityError, match="dialogue breaks off") as caught:
        packaged(THINKING)
    assert "message 2 of 3" in caught.value.why and "\n" not in caught.value.why


def test_a_base_model_gets_no_template() -> None:
    assert package_template(None) == PackagedTemplate(chat=False, template=None)


@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_blank_template_is_for_readers_to_leave_out(blank: str) -> None:
    with pytest.raises((FidelityError, FormatError), match="the checkpoint's chat template"):
        package_template(blank)


def test_refusals_are_the_same_on_both_sides() -> None:
    two_users = next(messages for messages in CONVERSATIONS if [message["role"] for message in messages] == ["user", "user"])
    assert render_transformers(TURNS.template, two_users, TURNS.special_tokens) is None
    template = packaged(TURNS).template
    assert template is not None
    (rendered,) = render_runtime(template, [two_users]).rendered
    assert rendered.text is None and "roles must take turns" in rendered.error


def test_a_refusal_the_runtime_does_not_share_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def tolerant(*arguments: object) -> str:
        return translate_template(*arguments).replace("raise_exception(", "dict(x=")  # type: ignore[arg-type]

    monkeypatch.setattr(template_source, "translate_template", tolerant)
    monkeypatch.setattr(module, "ask_source", template_source.answer)
    with pytest.raises(FidelityError) as caught:
        packaged(INSTRUCTIONS)
    assert "apply_chat_template refuses it" in caught.value.why


def test_only_special_tokens_a_template_names_are_bound() -> None:
    notes: list[str] = []
    template = translate_template("{{ bos_token }}", {"bos_token": '<"s">'}, None, notes)
    assert '{%- set bos_token = "<\\"s\\">" -%}' in template
    unnamed = package_template(CHATML.template, special_tokens={"pad_token": "<pad>"}, stop_texts=CHATML.stop_texts).template
    assert unnamed is not None and "<pad>" not in unnamed


def test_a_part_that_is_no_text_is_refused_not_dropped() -> None:
    template = packaged(CHATML).template
    assert template is not None
    image = [{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image", "path": "/x.png"}]}]
    texts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    refused, joined = render_runtime(template, [image, texts]).rendered
    assert refused.text is None and "takes text only" in refused.error
    assert joined.text is not None and "user\nab<|im_end|>" in joined.text


def test_a_template_that_is_no_jinja_is_refused_with_its_line() -> None:
    with pytest.raises(FormatError, match="no valid Jinja") as caught:
        package_template("{% for m in messages %}\n{{ m.content }")
    assert caught.value.why.startswith("line 2")


@pytest.mark.parametrize("statement", ["{% include 'x' %}", "{% extends 'x' %}", "{% block a %}{% endblock %}", "{% import 'x' as y %}"])
def test_a_statement_without_counterpart_is_refused_by_name(statement: str) -> None:
    with pytest.raises(FormatError, match="cannot be written for the LiteRT-LM runtime") as caught:
        package_template(CHATML.template + statement)
    assert statement.split()[1] in caught.value.why


def test_a_template_that_refuses_everything_is_no_chat_template() -> None:
    with pytest.raises(FidelityError, match="renders no conversation"):
        package_template("{{ raise_exception('never') }}")


@pytest.mark.parametrize("constant", ["hello", "{{ 'hello' }}", "hello{% if add_generation_prompt %}, A:{% endif %}"])
def test_a_template_that_ignores_the_messages_is_refused(constant: str) -> None:
    with pytest.raises(FormatError, match="ignores the messages") as caught:
        package_template(constant)
    assert "'hello" in caught.value.why


def test_the_notes_say_what_was_changed() -> None:
    rewrites = packaged(PYTHON).rewrites
    for note in ("loop controls became conditions", "method get() became a filter or test", "'is none' became '== none'"):
        assert rewrites.count(note) == 1


def test_there_are_at_least_twelve_conversations_of_the_promised_kinds() -> None:
    assert len(CONVERSATIONS) >= 12
    texts = "\0".join(message["content"] for messages in CONVERSATIONS for message in messages)
    for part in ("{{", "{%", "第三ポンプ", "<|im_start|>", "<bos>", '"', "\\", "\t", "\r\n", "👍"):
        assert part in texts
    assert any(message["content"] == "" for messages in CONVERSATIONS for message in messages)
    assert any(len(message["content"]) > 4000 for messages in CONVERSATIONS for message in messages)
    assert any(len(messages) > 4 for messages in CONVERSATIONS)


@pytest.mark.real
def test_smollm2s_own_template_is_exact(smollm2_gguf: Path) -> None:
    from converters.read import read_checkpoint

    checkpoint = read_checkpoint(smollm2_gguf)
    names: Mapping[str, str] = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    done = package_template(checkpoint.chat_template, special_tokens=names, stop_texts=["<|im_end|>"])
    assert done.chat and done.exact_turns and done.verified_conversations == len(CONVERSATIONS)
