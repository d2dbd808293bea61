"""What a checkpoint says of its own chat template: each conversation rendered by transformers, and the template rewritten for LiteRT-LM.

A template is a program by a stranger. It is compiled, run and rewritten in a child process that ends when it takes too much:
loops can multiply, a constant such as 'a' * 10**9 is computed while compiling, and nested branches double when rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from converters.child import MEMORY_LIMIT, TIME_LIMIT, ChildDeathError, run_in_child
from converters.confinement import confine
from converters.template_texts import ANSWER, CONVERSATIONS, DIALOGUES, Message
from converters.template_translation import NEXT_TURN, translate_template
from toolkit.errors import FidelityError, FormatError

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint

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


def expected_conversations(checkpoint: Checkpoint) -> tuple[str | None, ...]:
    """What a checkpoint's own template makes of each of `CONVERSATIONS`, by transformers in a confined child process.

    Returns:
        A text for each; None where the template refuses. Nothing for a base model.

    Raises:
        FormatError: The template ignores the messages, or takes too much time, memory or text.
        FidelityError: It renders no conversation.
    """
    from converters.tokenizer import special_tokens

    if checkpoint.chat_template is None:
        return ()
    tokens = spoken_of(checkpoint.chat_template, special_tokens(checkpoint.tokenizer))
    rendered = tuple(_ask("render_confined", checkpoint.chat_template, tokens)["rendered"])
    require_said(rendered)
    return rendered


def ask_source(chat_template: str, special_tokens: Mapping[str, str], stop_texts: Sequence[str]) -> SourceAnswers:
    """Render and rewrite a checkpoint's template, in a confined child process.

    Args:
        chat_template: For jinja2, as `apply_chat_template` takes it.
        special_tokens: Those it may name, by variable name.
        stop_texts: The texts of the tokens that end an answer.

    Raises:
        FormatError: It is no valid Jinja, cannot be rewritten, ignores the messages, or takes too much time, memory or text.
        FidelityError: It renders no conversation.
    """
    data = _ask("answer_confined", chat_template, special_tokens, stop_texts=list(stop_texts))
    answers = SourceAnswers(tuple(data["rendered"]), tuple(data["dialogues"]), data["template"], tuple(data["rewrites"]))
    require_said(answers.rendered)
    return answers


def spoken_of(chat_template: str, special_tokens: Mapping[str, str]) -> dict[str, str]:
    """The special tokens whose names a template holds."""
    return {name: text for name, text in special_tokens.items() if name in chat_template}


def require_said(rendered: Sequence[str | None]) -> None:
    """Refuse a template that says nothing, or the same whatever the messages are, so that no model could answer them.

    Raises:
        FidelityError: It refuses, or renders empty, every conversation.
        FormatError: It ignores the messages.
    """
    if not any(rendered):
        raise FidelityError(
            "the checkpoint's chat template renders no conversation",
            why="it refuses, or renders empty, all of the fixed conversations",
            fix="remove chat_template from the checkpoint to convert a base model",
        )
    if len(texts := {text for text in rendered if text is not None}) == 1:
        text = texts.pop()
        raise FormatError(
            "the checkpoint's chat template ignores the messages",
            why=f"all fixed conversations are rendered as {text[:60]!r}{'...' if len(text) > 60 else ''}",
            fix="correct chat_template in the checkpoint, or remove it to convert a base model",
        )


def _ask(function: str, chat_template: str, special_tokens: Mapping[str, str], **more: Any) -> dict[str, Any]:
    given = {"chat_template": chat_template, "special_tokens": dict(special_tokens), **more}
    arguments = {**given, "cpu_s": CPU_S, "memory_bytes": MEMORY_BYTES}
    with death_blamed_on_template("transformers"):
        return run_in_child(f"{__name__}:{function}", arguments, what="render the chat template", timeout_s=TIMEOUT_S)


def render_confined(chat_template: str, special_tokens: dict[str, str], cpu_s: float, memory_bytes: int) -> dict[str, Any]:
    """The child's part of `expected_conversations`."""
    with _jinja_confined(cpu_s, memory_bytes):
        return {"rendered": _rendered(chat_template, CONVERSATIONS, special_tokens)}


def answer_confined(
    chat_template: str, special_tokens: dict[str, str], stop_texts: list[str], cpu_s: float, memory_bytes: int
) -> dict[str, Any]:
    """The child's part of `ask_source`."""
    with _jinja_confined(cpu_s, memory_bytes):
        return asdict(answer(chat_template, special_tokens, stop_texts))


@contextmanager
def _jinja_confined(cpu_s: float, memory_bytes: int) -> Iterator[None]:
    import transformers.utils.chat_template_utils  # noqa: F401  its memory and time are not the template's

    with confined("transformers", cpu_s=cpu_s, memory_bytes=memory_bytes):
        yield


@contextmanager
def confined(renderer: str, *, cpu_s: float, memory_bytes: int) -> Iterator[None]:
    """Confine this process, for good, while it renders a template; memory that runs out is the template's error.

    Raises:
        FormatError: It ran out of memory.
    """
    confine(cpu_s=cpu_s, memory_bytes=memory_bytes)
    try:
        yield
    except MemoryError as error:
        raise costly(f"rendering it in {renderer} needs more than {memory_bytes // 2**20} MiB of memory") from error


def answer(chat_template: str, special_tokens: Mapping[str, str], stop_texts: Sequence[str]) -> SourceAnswers:
    """`ask_source` in this process."""
    rendered = _rendered(chat_template, [*CONVERSATIONS, *map(_whole, DIALOGUES)], special_tokens)
    boundary = turn_boundary(chat_template, special_tokens, stop_texts)
    notes: list[str] = []
    template = translate_template(chat_template, special_tokens, boundary, notes)
    check_length(template, "the template written for the runtime")
    n = len(CONVERSATIONS)
    return SourceAnswers(tuple(rendered[:n]), tuple(rendered[n:]), template, tuple(notes))


def _rendered(chat_template: str, conversations: Sequence[Sequence[Message]], special_tokens: Mapping[str, str]) -> list[str | None]:
    rendered = [render_transformers(chat_template, messages, special_tokens) for messages in conversations]
    for text in rendered:
        check_length(text or "", "one conversation rendered")
    return rendered


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
        limits = dict.fromkeys(("SIGXCPU", TIME_LIMIT), "does not end within the time it may take")
        limits[MEMORY_LIMIT] = "needs more memory than it may take"
        raise costly(f"rendering it in {renderer} {limits.get(death.cause, f'ends the process with {death.cause}')}") from death


def _whole(sent: Sequence[str]) -> list[Message]:
    """The messages of a dialogue up to its last user message, each earlier one answered."""
    whole: list[Message] = []
    for text in sent:
        whole += [{"role": "user", "content": text}, {"role": "assistant", "content": ANSWER}]
    return whole[:-1]


def render_transformers(
    chat_template: str, messages: Sequence[Message], special_tokens: Mapping[str, str], *, add_generation_prompt: bool = True
) -> str | None:
    """What `apply_chat_template` makes of a conversation; None if the template refuses it."""
    from transformers.utils.chat_template_utils import render_jinja_template

    def render() -> str:
        options = {"chat_template": chat_template, "add_generation_prompt": add_generation_prompt, **special_tokens}
        rendered, _ = render_jinja_template(conversations=[list(messages)], **options)
        return str(rendered[0])

    return unless_refused(render)


def unless_refused(render: Callable[[], str]) -> str | None:
    """What a call into jinja2 renders; None if the template refuses (raise_exception, or an error of its own)."""
    from jinja2 import TemplateError

    try:
        return render()
    except (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None


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
