"""Asking onnxruntime-genai itself what it makes of a tokenizer and a chat template, before any weight is written.

It needs no model for that: a folder with the tokenizer's files and a genai_config.json will do. It is loaded in a child process,
since a template is a program by a stranger.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.child import run_in_child
from converters.confinement import confine
from converters.targets.onnx_tokenizer import WrittenTokenizer, ways_to_write
from converters.template_source import check_length, death_blamed_on_template, render_transformers
from converters.template_texts import CONVERSATIONS, Message
from converters.tokenizer import reference_encodings, special_tokens
from toolkit.errors import FidelityError

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint

CPU_S = 60.0
MEMORY_BYTES = 2**31
TIMEOUT_S = 300.0
TEMPLATE_NAME = "chat_template.jinja"


@dataclass(frozen=True)
class ProvenText:
    """A tokenizer and a template as a bundle carries them.

    Args:
        tokenizer: The files.
        n_texts: Texts whose token ids, and text decoded from them token by token, equal the checkpoint's.
        chat_template: The checkpoint's, unchanged; None for a base model.
        n_conversations: Conversations rendered like `apply_chat_template`, and tokenized like its text.
    """

    tokenizer: WrittenTokenizer
    n_texts: int
    chat_template: str | None
    n_conversations: int

    def as_manifest(self, *, add_bos: bool) -> dict[str, object]:
        """What `Manifest.tokenizer` holds. The runtime's tokenizer adds no BOS: where a base model wants one, the caller puts it first."""
        return {
            "kind": "huggingface",
            "verified_texts": self.n_texts,
            "rewrites": list(self.tokenizer.rewrites),
            "prepend_bos": add_bos and self.chat_template is None,
        }

    def files(self) -> dict[str, bytes]:
        """File name -> content."""
        config = json.dumps(self.tokenizer.config, indent=2, ensure_ascii=False) + "\n"
        made = {"tokenizer.json": self.tokenizer.tokenizer_json, "tokenizer_config.json": config.encode()}
        return made if self.chat_template is None else {**made, TEMPLATE_NAME: self.chat_template.encode()}


def prove(checkpoint: Checkpoint, genai_config: dict[str, Any]) -> ProvenText:
    """Find the way of writing the tokenizer that the runtime reads like the checkpoint's, and hold its rendering against transformers'.

    Raises:
        FormatError: Tokenizer or template are damaged, or the template takes too much.
        FidelityError: The runtime tokenizes or renders differently; `why` holds the first difference.
        ToolkitError: The runtime died.
    """
    template = checkpoint.chat_template if checkpoint.chat_template and checkpoint.chat_template.strip() else None
    expected = _expected(checkpoint, template)
    first_why = ""
    context_length = genai_config["model"]["context_length"]
    for written in ways_to_write(checkpoint.tokenizer, context_length):
        assert checkpoint.tokenizer.tokenizer_json is not None
        encodings = reference_encodings(checkpoint.tokenizer.tokenizer_json)
        candidate = ProvenText(written, len(encodings), template, sum(text is not None for text in expected))
        got = _ask(candidate, genai_config, checkpoint.tokenizer.tokenizer_json, list(encodings), expected)
        if why := got["tokenizer_why"]:
            first_why = first_why or why
            continue
        if got["template_why"]:
            raise _different("the chat template does not say in onnxruntime-genai what it says in the checkpoint", got["template_why"])
        return candidate
    raise _different("this tokenizer does not work in onnxruntime-genai", first_why)


def _different(what: str, why: str) -> FidelityError:
    return FidelityError(what, why=why, fix="convert to another target: --to litert, mlx or gguf")


def _expected(checkpoint: Checkpoint, template: str | None) -> list[str | None]:
    if template is None:
        return []
    tokens = {name: text for name, text in special_tokens(checkpoint.tokenizer).items() if name in template}
    arguments = {"chat_template": template, "tokens": tokens}
    with death_blamed_on_template("transformers"):
        done = run_in_child(f"{__name__}:render", arguments, what="render the chat template", timeout_s=TIMEOUT_S)
    rendered: list[str | None] = done["rendered"]
    if not any(rendered):
        raise FidelityError(
            "the checkpoint's chat template renders no conversation",
            why="it refuses, or renders empty, all of the fixed conversations",
            fix="remove chat_template from the checkpoint to convert a base model",
        )
    return rendered


def _ask(
    candidate: ProvenText, genai_config: dict[str, Any], tokenizer_json: bytes, texts: list[str], expected: list[str | None]
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ondevice-toolkit-") as name:
        folder = Path(name)
        for file_name, content in candidate.files().items():
            (folder / file_name).write_bytes(content)
        (folder / "genai_config.json").write_text(json.dumps(genai_config), encoding="utf-8")
        (folder / "reference.json").write_bytes(tokenizer_json)
        arguments = {"folder": name, "texts": texts, "expected": expected}
        with death_blamed_on_template("onnxruntime-genai"):
            return run_in_child(f"{__name__}:answer", arguments, what="ask onnxruntime-genai", timeout_s=TIMEOUT_S)


def render(chat_template: str, tokens: dict[str, str]) -> dict[str, Any]:
    """A child's part: every conversation as transformers renders it, None where the template refuses."""
    import transformers.utils.chat_template_utils  # noqa: F401  its memory and time are not the template's

    confine(cpu_s=CPU_S, memory_bytes=MEMORY_BYTES)
    rendered = [render_transformers(chat_template, messages, tokens) for messages in CONVERSATIONS]
    for text in rendered:
        check_length(text or "", "one conversation rendered")
    return {"rendered": rendered}


def answer(folder: str, texts: list[str], expected: list[str | None]) -> dict[str, Any]:
    """A child's part: the first difference in tokenizing and in rendering, in words; empty where there is none."""
    import onnxruntime_genai as genai
    from tokenizers import Tokenizer

    genai.disable_telemetry_events()
    reference = Tokenizer.from_file(str(Path(folder) / "reference.json"))
    try:
        tokenizer = genai.Tokenizer(folder)
    except Exception as error:  # the library has no class of its own
        return {"tokenizer_why": f"the runtime refuses it: {_one_line(error)}", "template_why": ""}
    confine(cpu_s=CPU_S, memory_bytes=MEMORY_BYTES)
    tokenizer_why, template_why = _token_difference(tokenizer, reference, texts), _text_difference(tokenizer, reference, expected)
    return {"tokenizer_why": tokenizer_why, "template_why": template_why}


def _token_difference(tokenizer: Any, reference: Any, texts: Sequence[str]) -> str:
    """Ids of each text, and the text its ids make one after the other, as an answer is shown: control tokens left out."""
    different = []
    for text in texts:
        wanted, got = reference.encode(text, add_special_tokens=False).ids, [int(token_id) for token_id in tokenizer.encode(text)]
        if wanted != got:
            different.append(f"{text[:60]!r}: expected {_short(wanted)}, got {_short(got)}")
            continue
        stream = tokenizer.create_stream()
        shown, said = "".join(stream.decode(token_id) for token_id in wanted), reference.decode(wanted, skip_special_tokens=True)
        if shown != said:
            different.append(f"{text[:60]!r}: its ids say {_short(said)}, the runtime shows {_short(shown)}")
    return f"{len(different)} of {len(texts)} texts differ, first {different[0]}" if different else ""


def _text_difference(tokenizer: Any, reference: Any, expected: Sequence[str | None]) -> str:
    different = []
    for index, (messages, wanted) in enumerate(zip(CONVERSATIONS, expected, strict=False)):
        got, error = _rendered(tokenizer, messages)
        if got != wanted:
            different.append(f"number {index + 1}: expected {_around(wanted, got)}, got {_around(got, wanted)}{error and f' ({error})'}")
        elif wanted is not None:
            # The template is the whole prompt: a BOS it does not write is none, and one it writes must not come twice.
            ids, asked = [int(token_id) for token_id in tokenizer.encode(wanted)], reference.encode(wanted, add_special_tokens=False).ids
            if ids != asked:
                different.append(f"number {index + 1}, tokenized: expected {_short(asked)}, got {_short(ids)}")
    return f"{len(different)} of {len(expected)} conversations differ; {different[0]}" if different else ""


def _rendered(tokenizer: Any, messages: Sequence[Message]) -> tuple[str | None, str]:
    try:
        return str(tokenizer.apply_chat_template(json.dumps(list(messages)), add_generation_prompt=True)), ""
    except Exception as error:  # a template's own refusal, or what the runtime cannot do
        return None, _one_line(error)


def _around(text: str | None, other: str | None) -> str:
    """The part of a text where it begins to differ from another."""
    if text is None:
        return "a refusal"
    at = next((i for i, (a, b) in enumerate(zip(text, other or "", strict=False)) if a != b), min(len(text), len(other or "")))
    return repr(text[max(0, at - 20) : at + 30])


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
