"""The chat template of a bundle: rewritten for the runtime, then proven to say what the checkpoint's says.

The runtime hands each message's content over as a list of parts, calls no Python, knows no special tokens, and feeds a
dialogue turn by turn: before each answer it renders the conversation without and with the new message and takes what was
added. The rewritten template meets all four; rendering by the runtime itself decides whether it did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from converters.runtime_probe import RuntimeAnswers, render_runtime
from converters.template_source import ask_source, death_blamed_on_template, spoken_of
from converters.template_texts import ANSWER, CONVERSATIONS, DIALOGUES
from toolkit.errors import FidelityError


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
        chat_template: From the checkpoint; None for a base model.
        special_tokens: What templates may name: {"bos_token": "<bos>", "eos_token": ..., ...}.
        stop_texts: The texts of the tokens that end an answer.

    Raises:
        FormatError: The template is no valid Jinja, has a statement the runtime has no counterpart for, ignores the
            messages, or takes too much time or memory.
        FidelityError: No conversation is rendered, or one differently; `why` holds the difference.
        BackendUnavailableError: The runtime that has to prove it is not installed.
    """
    if chat_template is None:
        return PackagedTemplate(False, None)
    source = ask_source(chat_template, spoken_of(chat_template, special_tokens or {}), stop_texts)
    with death_blamed_on_template("the LiteRT-LM runtime"):
        answers = render_runtime(source.template, CONVERSATIONS, DIALOGUES)
    _require_equal(source.rendered, answers)
    exact = _has_exact_turns(source.dialogues, stop_texts, answers)
    return PackagedTemplate(True, source.template, source.rewrites, sum(text is not None for text in source.rendered), exact)


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
    at = next((index for index, (a, b) in enumerate(zip(want, got, strict=False)) if a != b), min(len(want), len(got)))
    return f"after {want[max(0, at - 30) : at]!r} expected {want[at : at + 40]!r}, got {got[at : at + 40]!r}"


def _has_exact_turns(dialogues: Sequence[str | None], stop_texts: Sequence[str], answers: RuntimeAnswers) -> bool:
    """Whether prompt, answer, stop token, prompt, ... of each dialogue read like the whole conversation.

    Raises:
        FidelityError: A dialogue that the checkpoint's template renders breaks off in the runtime.
    """
    is_exact = True
    for sent, want, dialogue in zip(DIALOGUES, dialogues, answers.dialogues, strict=True):
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
