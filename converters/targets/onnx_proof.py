"""Asking onnxruntime-genai itself what it makes of a tokenizer and a chat template, before any weight is written.

It needs no model for that: a folder with the tokenizer's files and a genai_config.json will do. It is loaded in child processes,
since a template is a program by a stranger; one for the tokenizer, one for the template, so that each answers for itself.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.child import run_in_child
from converters.confinement import confine
from converters.targets import other_targets
from converters.targets.onnx_tokenizer import WrittenTokenizer, ways_to_write
from converters.template_source import confined, death_blamed_on_template, expected_conversations
from converters.template_texts import CONVERSATIONS, Message
from converters.tokenizer import Difference, reference_encodings, shortened
from toolkit.errors import FidelityError

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint

CPU_S = 60.0
MEMORY_BYTES = 2**31
TIMEOUT_S = 900.0  # for a machine on which 60 s of CPU take that long
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
        ChildDeathError: The runtime died of the tokenizer.
    """
    tokenizer_json = checkpoint.tokenizer.require_json()
    encodings = reference_encodings(tokenizer_json)
    expected = expected_conversations(checkpoint)
    model_type, first_why = checkpoint.spec.model_type, ""
    for written in ways_to_write(checkpoint.tokenizer, genai_config["model"]["context_length"]):
        candidate = ProvenText(written, len(encodings), checkpoint.chat_template, sum(text is not None for text in expected))
        with _folder(candidate, genai_config, tokenizer_json) as folder:
            if why := _ask_tokenizer(folder, list(encodings)):
                first_why = first_why or why
                continue
            if expected and (why := _ask_template(folder, expected)):
                what = "the chat template does not say in onnxruntime-genai what it says in the checkpoint"
                raise FidelityError(what, why=why, fix=other_targets("onnx", model_type))
        return candidate
    raise FidelityError("this tokenizer does not work in onnxruntime-genai", why=first_why, fix=other_targets("onnx", model_type))


@contextmanager
def _folder(candidate: ProvenText, genai_config: dict[str, Any], tokenizer_json: bytes) -> Iterator[str]:
    """What the runtime opens, and the checkpoint's own tokenizer beside it, for as long as it is asked."""
    with tempfile.TemporaryDirectory(prefix="ondevice-toolkit-") as name:
        for file_name, content in candidate.files().items():
            (Path(name) / file_name).write_bytes(content)
        (Path(name) / "genai_config.json").write_text(json.dumps(genai_config), encoding="utf-8")
        (Path(name) / "reference.json").write_bytes(tokenizer_json)
        yield name


def _ask_tokenizer(folder: str, texts: Sequence[str]) -> str:
    arguments = {"folder": folder, "texts": list(texts), "cpu_s": CPU_S, "memory_bytes": MEMORY_BYTES}
    what = "ask onnxruntime-genai about the tokenizer"
    return str(run_in_child(f"{__name__}:compare_texts", arguments, what=what, timeout_s=TIMEOUT_S)["difference"])


def _ask_template(folder: str, expected: Sequence[str | None]) -> str:
    arguments = {"folder": folder, "expected": list(expected), "cpu_s": CPU_S, "memory_bytes": MEMORY_BYTES}
    what = "ask onnxruntime-genai about the chat template"
    with death_blamed_on_template("onnxruntime-genai"):
        return str(run_in_child(f"{__name__}:compare_conversations", arguments, what=what, timeout_s=TIMEOUT_S)["difference"])


def compare_texts(folder: str, texts: list[str], cpu_s: float, memory_bytes: int) -> dict[str, Any]:
    """A child's part: the first difference in tokenizing, in words; empty where there is none."""
    try:
        tokenizer, reference = _tokenizers(folder)
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # the library has no class of its own
        return {"difference": f"the runtime refuses it: {_one_line(error)}"}
    confine(cpu_s=cpu_s, memory_bytes=memory_bytes)
    return {"difference": _token_difference(tokenizer, reference, texts)}


def compare_conversations(folder: str, expected: list[str | None], cpu_s: float, memory_bytes: int) -> dict[str, Any]:
    """A child's part: the first difference in rendering, in words; empty where there is none."""
    tokenizer, reference = _tokenizers(folder)
    with confined("onnxruntime-genai", cpu_s=cpu_s, memory_bytes=memory_bytes):
        return {"difference": _text_difference(tokenizer, reference, expected)}


def _tokenizers(folder: str) -> tuple[Any, Any]:
    """The runtime's reading of a folder, and the checkpoint's own."""
    import onnxruntime_genai as genai
    from tokenizers import Tokenizer

    genai.disable_telemetry_events()
    return genai.Tokenizer(folder), Tokenizer.from_file(str(Path(folder) / "reference.json"))


def _token_difference(tokenizer: Any, reference: Any, texts: Sequence[str]) -> str:
    """Ids of each text, and the text its ids make one after the other, as an answer is shown: control tokens left out."""
    different = []
    for text in texts:
        wanted, got = reference.encode(text, add_special_tokens=False).ids, [int(token_id) for token_id in tokenizer.encode(text)]
        if wanted != got:
            different.append(str(Difference(text, wanted, got)))
            continue
        stream = tokenizer.create_stream()
        shown, said = "".join(stream.decode(token_id) for token_id in wanted), reference.decode(wanted, skip_special_tokens=True)
        if shown != said:
            different.append(f"{text[:60]!r}: its ids say {shortened(said)}, the runtime shows {shortened(shown)}")
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
                different.append(f"number {index + 1}, tokenized: expected {shortened(asked)}, got {shortened(ids)}")
    return f"{len(different)} of {len(expected)} conversations differ; {different[0]}" if different else ""


def _rendered(tokenizer: Any, messages: Sequence[Message]) -> tuple[str | None, str]:
    try:
        return str(tokenizer.apply_chat_template(json.dumps(list(messages)), add_generation_prompt=True)), ""
    except MemoryError:
        raise
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
