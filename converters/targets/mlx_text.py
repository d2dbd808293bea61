"""Proof that mlx_lm reads a bundle's text files as the checkpoint means them: token ids, chat template, stop tokens.

A chat template is a stranger's program, so a child process renders it, confined once the tokenizer is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.child import run_in_child
from converters.confinement import confine
from converters.template_source import (
    CPU_S,
    MEMORY_BYTES,
    TIMEOUT_S,
    check_length,
    costly,
    death_blamed_on_template,
    render_transformers,
)
from converters.template_texts import CONVERSATIONS, Message
from toolkit.errors import FidelityError

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint

_MAX_SPECIAL_TEXTS = 64


@dataclass(frozen=True)
class TextProof:
    """On how many fixed texts and conversations mlx_lm agreed with the checkpoint's own tokenizer and template."""

    verified_texts: int
    verified_conversations: int


def prove_text(checkpoint: Checkpoint, folder: Path) -> TextProof:
    """Have mlx_lm's tokenizer encode, decode and render what the checkpoint's own is known to.

    Args:
        checkpoint: Gives template, special tokens and stop ids.
        folder: A bundle's config.json, tokenizer files and template.

    Raises:
        FidelityError: mlx_lm reads a text, a conversation or the stop tokens differently; `why` holds the first difference.
        FormatError: The template takes too much time or memory.
        ToolkitError: mlx_lm cannot load the tokenizer.
    """
    from converters.tokenizer import special_tokens

    template = checkpoint.chat_template or ""
    tokens = {name: text for name, text in special_tokens(checkpoint.tokenizer).items() if name in template}
    arguments = {"folder": str(folder), "chat_template": template, "special_tokens": tokens}
    with death_blamed_on_template("mlx_lm"):
        answer = run_in_child("converters.targets.mlx_text:compare", arguments, what="ask mlx_lm's tokenizer", timeout_s=TIMEOUT_S)
    wanted, found = sorted(checkpoint.spec.eos_token_ids), answer["stop_ids"]
    if found != wanted:
        raise _differs("stops at other tokens", f"the checkpoint's stop ids are {wanted}, mlx_lm's {found}")
    if answer["text_difference"]:
        raise _differs("reads the tokenizer differently", answer["text_difference"])
    if answer["template_difference"]:
        raise _differs("renders the chat template differently", answer["template_difference"])
    return TextProof(answer["n_texts"], answer["n_conversations"])


def _differs(what: str, why: str) -> FidelityError:
    return FidelityError(f"mlx_lm {what}", why=why, fix="convert to another target: --to gguf, onnx or litert")


def compare(folder: str, chat_template: str, special_tokens: dict[str, str]) -> dict[str, Any]:
    """The child's part. Arguments and result are JSON data."""
    from mlx_lm.utils import load_config, load_tokenizer
    from tokenizers import Tokenizer

    place = Path(folder)
    reference = Tokenizer.from_file(str(place / "tokenizer.json"))
    tokenizer = load_tokenizer(place, eos_token_ids=load_config(place).get("eos_token_id"))
    texts = _texts(reference)
    answer = {
        "n_texts": len(texts),
        "text_difference": next((found for text in texts if (found := _text_difference(reference, tokenizer, text))), ""),
        "stop_ids": sorted(tokenizer.eos_token_ids),
    }
    confine(cpu_s=CPU_S, memory_bytes=MEMORY_BYTES)
    try:
        return answer | _compare_templates(tokenizer.apply_chat_template, chat_template, special_tokens)
    except MemoryError as error:
        raise costly(f"rendering it in mlx_lm needs more than {MEMORY_BYTES // 2**20} MiB of memory") from error


def _compare_templates(apply_chat_template: Callable[..., Any], chat_template: str, special_tokens: dict[str, str]) -> dict[str, Any]:
    conversations: Sequence[Sequence[Message]] = CONVERSATIONS if chat_template else ()
    expected = [render_transformers(chat_template, messages, special_tokens) for messages in conversations]
    rendered = [_render(apply_chat_template, messages) for messages in conversations]
    for text in (*expected, *rendered):
        check_length(text or "", "one conversation rendered")
    pairs = list(enumerate(zip(expected, rendered, strict=True), start=1))
    return {
        "n_conversations": sum(text is not None for text in expected),
        "template_difference": next((f"conversation {n}: {_short(a)} became {_short(b)}" for n, (a, b) in pairs if a != b), ""),
    }


def _texts(reference: Any) -> Sequence[str]:
    from converters.tokenizer_texts import proof_texts

    added = [token.content for _, token in sorted(reference.get_added_tokens_decoder().items())]
    return ["", *proof_texts([text for text in added if text.strip()][:_MAX_SPECIAL_TEXTS], [])]


def _text_difference(reference: Any, tokenizer: Any, text: str) -> str:
    """How a text's ids differ, with the tokens a tokenizer adds by itself and without, or what the ids decode to."""
    for adds in (True, False):
        wanted, found = reference.encode(text, add_special_tokens=adds).ids, list(tokenizer.encode(text, add_special_tokens=adds))
        if wanted != found:
            return f"{text[:60]!r}: expected {_short(wanted)}, got {_short(found)}"
    said, back = reference.decode(wanted, skip_special_tokens=False), tokenizer.decode(wanted)
    return "" if said == back else f"{text[:60]!r} decoded: expected {_short(said)}, got {_short(back)}"


def _render(apply_chat_template: Callable[..., Any], messages: Sequence[Message]) -> str | None:
    from jinja2 import TemplateError

    try:
        return str(apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
    except (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
