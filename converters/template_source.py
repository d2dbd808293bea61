"""What a checkpoint says of its own chat template: each conversation rendered by jinja2, and the template rewritten for the runtime.

A template is a program by a stranger. It is compiled, run and rewritten in a child process that ends when it takes too much:
loops can multiply, a constant such as 'a' * 10**9 is computed while compiling, and nested branches double when rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from converters.child import TIME_LIMIT, ChildDeathError, run_in_child
from converters.confinement import confine
from converters.template_texts import ANSWER, CONVERSATIONS, DIALOGUES, Message
from converters.template_translation import NEXT_TURN, translate_template
from toolkit.errors import FormatError

CPU_S = 10.0
MEMORY_BYTES = 2**30
TIMEOUT_S = 900.0  # for a machine on which 10 s of CPU take that long
MAX_TEXT_LENGTH = 2**20


@dataclass(frozen=True)
class SourceAnswers:
    """What `apply_chat_template` makes of the fixed conversations, and the template in the runtime's Jinja.

    Args:
        rendered: One text for each of `CONVERSATIONS`; None where the template refuses.
        dialogues: The whole of each of `DIALOGUES`, answers filled in; None where the template refuses.
        template: Rewritten.
        rewrites: What was changed, in words.
    """

    rendered: tuple[str | None, ...]
    dialogues: tuple[str | None, ...]
    template: str
    rewrites: tuple[str, ...]


def ask_source(chat_template: str, special_tokens: Mapping[str, str], stop_texts: Sequence[str]) -> SourceAnswers:
    """Render and rewrite a checkpoint's template, in a confined child process.

    Args:
        chat_template: For jinja2, as `apply_chat_template` takes it.
        special_tokens: Those it may name, by variable name.
        stop_texts: The texts of the tokens that end an answer.

    Raises:
        FormatError: It is no valid Jinja, cannot be rewritten, or takes too much time, memory or text.
    """
    texts = {"chat_template": chat_template, "special_tokens": dict(special_tokens), "stop_texts": list(stop_texts)}
    arguments = {**texts, "cpu_s": CPU_S, "memory_bytes": MEMORY_BYTES}
    with death_blamed_on_template("transformers"):
        data = run_in_child("converters.template_source:answer_confined", arguments, what="render the chat template", timeout_s=TIMEOUT_S)
    return SourceAnswers(tuple(data["rendered"]), tuple(data["dialogues"]), data["template"], tuple(data["rewrites"]))


def answer_confined(
    chat_template: str, special_tokens: dict[str, str], stop_texts: list[str], cpu_s: float, memory_bytes: int
) -> dict[str, Any]:
    """The child's part of `ask_source`."""
    import transformers.utils.chat_template_utils  # noqa: F401  its memory and time are not the template's

    confine(cpu_s=cpu_s, memory_bytes=memory_bytes)
    try:
        return asdict(answer(chat_template, special_tokens, stop_texts))
    except MemoryError as error:
        raise costly(f"rendering it in transformers needs more than {memory_bytes // 2**20} MiB of memory") from error


def answer(chat_template: str, special_tokens: Mapping[str, str], stop_texts: Sequence[str]) -> SourceAnswers:
    """`ask_source` in this process."""
    conversations = [*CONVERSATIONS, *map(_whole, DIALOGUES)]
    rendered = [render_transformers(chat_template, messages, special_tokens) for messages in conversations]
    for text in rendered:
        check_length(text or "", "one conversation rendered")
    boundary = turn_boundary(chat_template, special_tokens, stop_texts)
    notes: list[str] = []
    template = translate_template(chat_template, special_tokens, boundary, notes)
    check_length(template, "the template written for the runtime")
    n = len(CONVERSATIONS)
    return SourceAnswers(tuple(rendered[:n]), tuple(rendered[n:]), template, tuple(notes))


def costly(why: str) -> FormatError:
    """The error for a template that takes more than any that is meant to be used."""
    return FormatError(
        "the checkpoint's chat template takes too much to render", why=why, fix="give the checkpoint a simpler template, or remove it"
    )


def check_length(text: str, what: str) -> None:
    """Raises FormatError for a text longer than `MAX_TEXT_LENGTH` characters."""
    if len(text) > MAX_TEXT_LENGTH:
        raise costly(f"{what} has {len(text)} characters; {MAX_TEXT_LENGTH} are allowed")


@contextmanager
def death_blamed_on_template(renderer: str) -> Iterator[None]:
    """Turn the death of a child that renders a template into the template's error."""
    try:
        yield
    except ChildDeathError as death:
        is_slow = death.cause in ("SIGXCPU", TIME_LIMIT)
        how = "does not end within the time it may take" if is_slow else f"ends the process with {death.cause}"
        raise costly(f"rendering it in {renderer} {how}") from death


def _whole(sent: Sequence[str]) -> list[Message]:
    """The messages of a dialogue up to its last user message, each earlier one answered."""
    whole: list[Message] = []
    for text in sent:
        whole += [{"role": "user", "content": text}, {"role": "assistant", "content": ANSWER}]
    return whole[:-1]


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


def turn_boundary(chat_template: str, tokens: Mapping[str, str], stop_texts: Sequence[str]) -> str | None:
    """The text between an answer's stop token and the next user's text, if a conversation that ends with the answer must be cut there."""
    turn: list[Message] = [{"role": "user", "content": "u"}, {"role": "assistant", "content": ANSWER}]
    ended = render_transformers(chat_template, turn, tokens, add_generation_prompt=False)
    going_on = render_transformers(chat_template, [*turn, {"role": "user", "content": NEXT_TURN}], tokens)
    if ended is None or going_on is None or NEXT_TURN not in going_on:
        return None
    history = going_on[: going_on.index(NEXT_TURN)]
    for stop in sorted(stop_texts, key=len, reverse=True):
        at = history.rfind(ANSWER)
        after = history[at + len(ANSWER) :]
        if stop and stop in after:
            boundary = after[after.index(stop) + len(stop) :]
            return None if ended == history[: len(history) - len(boundary)] else boundary
    return None
