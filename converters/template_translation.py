"""Writing a checkpoint's chat template in the runtime's Jinja, with what the runtime does differently arranged around it."""

from __future__ import annotations

from collections.abc import Mapping

from converters.jinja_dialect import parse_template, quoted, write_template

NEXT_TURN = "the-next-user-turn"


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
    before, after = _CUT_BEFORE.replace("$MARK", quoted(NEXT_TURN)), _CUT_AFTER.replace("$BOUNDARY", quoted(boundary + NEXT_TURN))
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
