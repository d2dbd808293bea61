"""The chat template of a bundle: rewritten for the runtime, then proven to say what the checkpoint's says.

The runtime hands each message's content over as a list of parts, calls no Python, knows no special tokens, and feeds a
dialogue turn by turn: before each answer it renders the conversation without and with the new message and takes what was
added. The rewritten template meets all four; rendering by the runtime itself decides whether it did.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from converters.jinja_dialect import parse_template, quoted, write_template
from converters.runtime_probe import ANSWER, RuntimeAnswers, render_runtime
from converters.template_texts import CONVERSATIONS, DIALOGUES, Message
from toolkit.errors import FidelityError

_MARK = "the-next-user-turn"


@dataclass(frozen=True)
class PackagedTemplate:
    """A chat template as a LiteRT-LM file carries it.

    Args:
        chat: Whether there is one. A base model has none, and none is invented.
        template: In the runtime's Jinja.
        rewrites: What was changed, in words.
        verified_conversations: How many conversations the runtime rendered like `apply_chat_template`.
        exact_turns: Whether a dialogue held turn by turn gives the model the very text of the whole conversation. False
            where the checkpoint puts text between an answer and its stop token, which no runtime can know.
    """

    chat: bool
    template: str | None
    rewrites: tuple[str, ...] = ()
    verified_conversations: int = 0
    exact_turns: bool = True


def package_template(
    chat_template: str | None,
    *,
    special_tokens: Mapping[str, str] | None = None,
    stop_texts: Sequence[str] = (),
) -> PackagedTemplate:
    """Rewrite a checkpoint's chat template for the runtime and prove it.

    Args:
        chat_template: From the checkpoint; None or blank for a base model.
        special_tokens: What templates may name: {"bos_token": "<bos>", "eos_token": ..., ...}.
        stop_texts: The texts of the tokens that end an answer.

    Raises:
        FormatError: The template is no valid Jinja, or has a statement the runtime has no counterpart for.
        FidelityError: A conversation is rendered differently; `why` holds the difference.
        BackendUnavailableError: The runtime that has to prove it is not installed.
    """
    if chat_template is None or not chat_template.strip():
        return PackagedTemplate(False, None)
    tokens = {name: text for name, text in (special_tokens or {}).items() if name in chat_template}
    expected = [render_transformers(chat_template, messages, tokens) for messages in CONVERSATIONS]
    boundary = _turn_boundary(chat_template, tokens, stop_texts)
    notes: list[str] = []
    template = translate_template(chat_template, tokens, boundary, notes)
    answers = render_runtime(template, CONVERSATIONS, DIALOGUES)
    _require_equal(expected, answers)
    exact = _has_exact_turns(chat_template, tokens, stop_texts, answers)
    if not any(expected):
        raise FidelityError(
            "the checkpoint's chat template renders no conversation",
            why="it refuses, or renders empty, all of the fixed conversations",
            fix="remove chat_template from the checkpoint to convert a base model",
        )
    return PackagedTemplate(True, template, tuple(notes), sum(text is not None for text in expected), exact)


def translate_template(chat_template: str, special_tokens: Mapping[str, str], boundary: str | None, notes: list[str]) -> str:
    """Write a template in the runtime's Jinja, without proof.

    Args:
        chat_template: For jinja2, as `apply_chat_template` takes it.
        special_tokens: Bound as variables, since the runtime leaves them empty.
        boundary: What `package_template` found between an answer's stop token and the next user's text, where a conversation that
            ends with an answer has to be cut; None to leave it as rendered.
        notes: Each kind of change is appended, in words.
    """
    notes.append("content parts are joined to text")
    lines = [f"{{%- set {name} = {quoted(text)} -%}}" for name, text in special_tokens.items()]
    lines += [f"{{%- set {name} = ({name} if {name} is defined else none) -%}}" for name in ("tools", "documents")]
    lines += _FLATTEN.strip().splitlines()
    if special_tokens:
        notes.append("special tokens are bound to their texts")
    written = write_template(parse_template(chat_template), notes=notes)
    if boundary is None:
        return "\n".join([*lines, written])
    notes.append("what follows an answer's stop token is fed with the next turn")
    before, after = _CUT_BEFORE.replace("$MARK", quoted(_MARK)), _CUT_AFTER.replace("$BOUNDARY", quoted(boundary + _MARK))
    return "\n".join([*lines, before.strip(), written, after.strip()])


_FLATTEN = """
{%- set _flat = namespace(messages=[], text="") -%}
{%- for message in messages -%}
  {%- if message.content is string or message.content is undefined or message.content == none -%}
    {%- set _flat.messages = _flat.messages + [message] -%}
  {%- else -%}
    {%- set _flat.text = "" -%}
    {%- for part in message.content -%}
      {%- if part.type == "text" -%}
        {%- set _flat.text = _flat.text ~ part.text -%}
      {%- elif part.type == "tool_response" -%}
        {%- set _flat.text = _flat.text ~ (part.response if part.response is string else part.response|tojson) -%}
      {%- else -%}
        {{- raise_exception("this model takes text only, a message has a part of type " ~ part.type) -}}
      {%- endif -%}
    {%- endfor -%}
    {%- set _flat.messages = _flat.messages + [dict(message, content=_flat.text)] -%}
  {%- endif -%}
{%- endfor -%}
{%- set messages = _flat.messages -%}
"""

# A conversation that ends with an answer is rendered with a user turn after it and cut where that turn begins.
_CUT_BEFORE = """
{%- set _is_open = (messages and not add_generation_prompt and messages[-1].role == "assistant") -%}
{%- if _is_open -%}
  {%- set messages = messages + [{"role": "user", "content": $MARK}] -%}
{%- endif -%}
{%- set _whole -%}
"""
_CUT_AFTER = """
{%- endset -%}
{{- ((_whole|split($BOUNDARY)|list)[0] if _is_open else _whole) -}}
"""


def render_transformers(
    chat_template: str, messages: Sequence[Message], special_tokens: Mapping[str, str], *, add_generation_prompt: bool = True
) -> str | None:
    """What `apply_chat_template` makes of a conversation; None if the template refuses it (raise_exception, or an error of its own)."""
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        rendered, _ = render_jinja_template(
            conversations=[list(messages)], chat_template=chat_template, add_generation_prompt=add_generation_prompt, **special_tokens
        )
    except (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None
    return str(rendered[0])


def _turn_boundary(chat_template: str, tokens: Mapping[str, str], stop_texts: Sequence[str]) -> str | None:
    """The text between an answer's stop token and the next user's text, if a conversation that ends with the answer must be cut there."""
    turn: list[Message] = [{"role": "user", "content": "u"}, {"role": "assistant", "content": ANSWER}]
    ended = render_transformers(chat_template, turn, tokens, add_generation_prompt=False)
    going_on = render_transformers(chat_template, [*turn, {"role": "user", "content": _MARK}], tokens)
    if ended is None or going_on is None or _MARK not in going_on:
        return None
    history = going_on[: going_on.index(_MARK)]
    for stop in sorted(stop_texts, key=len, reverse=True):
        at = history.rfind(ANSWER)
        after = history[at + len(ANSWER) :]
        if stop and stop in after:
            boundary = after[after.index(stop) + len(stop) :]
            return None if ended == history[: len(history) - len(boundary)] else boundary
    return None


def _require_equal(expected: Sequence[str | None], answers: RuntimeAnswers) -> None:
    for index, (want, got) in enumerate(zip(expected, answers.rendered, strict=True)):
        if want == got.text:
            continue
        if want is None:
            why = "apply_chat_template refuses it, the runtime renders it"
        elif got.text is None:
            why = f"the runtime refuses it: {got.error}"
        else:
            why = _difference(want, got.text)
        n_different = sum(a != b.text for a, b in zip(expected, answers.rendered, strict=True))
        raise FidelityError(
            "the chat template does not say in the LiteRT-LM runtime what it says in the checkpoint",
            why=f"{n_different} of {len(expected)} conversations differ; number {index + 1}: {why}",
            fix="convert to another target, or give the checkpoint a simpler template",
        )


def _difference(want: str, got: str) -> str:
    matcher = difflib.SequenceMatcher(None, want, got, autojunk=False)
    _, i1, i2, j1, j2 = next(code for code in matcher.get_opcodes() if code[0] != "equal")
    return f"after {want[max(0, i1 - 30) : i1]!r} expected {want[i1 : i2 + 20]!r}, got {got[j1 : j2 + 20]!r}"


def _has_exact_turns(chat_template: str, tokens: Mapping[str, str], stop_texts: Sequence[str], answers: RuntimeAnswers) -> bool:
    """Whether prompt, answer, stop token, prompt, ... of each dialogue read like the whole conversation.

    Raises:
        FidelityError: A dialogue that the checkpoint's template renders breaks off in the runtime.
    """
    is_exact = True
    for sent, dialogue in zip(DIALOGUES, answers.dialogues, strict=True):
        whole: list[Message] = []
        for text in sent:
            whole += [{"role": "user", "content": text}, {"role": "assistant", "content": ANSWER}]
        want = render_transformers(chat_template, whole[:-1], tokens)
        if want is None:
            continue
        if dialogue.error:
            raise FidelityError(
                "a dialogue breaks off in the LiteRT-LM runtime with this chat template",
                why=f"message {len(dialogue.prompts) + 1} of {len(sent)}: {dialogue.error}",
                fix="convert to another target, or give the checkpoint a simpler template",
            )
        is_exact = is_exact and any((ANSWER + stop).join(dialogue.prompts) == want for stop in stop_texts)
    return is_exact
