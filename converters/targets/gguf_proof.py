"""Asking llama.cpp itself what it makes of a tokenizer and a chat template, before any weight is written.

It is given a probe: a GGUF file with the real vocabulary and template and one layer of zeros. Loading and rendering happen in a
child process, since a vocabulary it cannot bear ends it with a signal and a template is a program by a stranger.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.child import run_in_child
from converters.confinement import confine
from converters.read.piece_merges import SPACE
from converters.targets.gguf_plan import PlannedTensor
from converters.targets.gguf_storage import TYPES, stored_bytes
from converters.targets.gguf_write import write_gguf
from converters.targets.llama_cpp import LlamaVocabulary
from converters.template_source import death_blamed_on_template, render_transformers
from converters.template_texts import CONVERSATIONS
from converters.tokenizer import reference_encodings, special_tokens

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint

CPU_S = 60.0
MEMORY_BYTES = 4 * 2**30
TIMEOUT_S = 300.0
_WIDTH, _HEADS = 32, 2
_CONTEXT_LENGTH = 256


@dataclass(frozen=True)
class Differences:
    """How many of a number of questions llama.cpp answers differently, and the first of them in words."""

    n_asked: int
    n_different: int = 0
    first: str = ""


@dataclass(frozen=True)
class Proof:
    """What llama.cpp made of a vocabulary and a template.

    Args:
        tokenizer: Texts whose token ids differ from the checkpoint's tokenizer, those left out that hold U+2581 itself: it
            stands for a space in a piece, and llama.cpp looks for it in other places than the tokenizers library.
        template: Conversations rendered differently from transformers; None for a base model.
        template_error: Why llama.cpp does not take the template at all; empty if it does.
        ignored_stop_ids: Stop tokens at which llama.cpp would not stop.
    """

    tokenizer: Differences
    template: Differences | None
    template_error: str
    ignored_stop_ids: tuple[int, ...]


def prove(checkpoint: Checkpoint, vocabulary: Mapping[str, Any]) -> Proof:
    """Compare llama.cpp's reading of a vocabulary and template with the checkpoint's own.

    Args:
        checkpoint: Its tokenizer.json and template are the reference.
        vocabulary: `tokenizer_metadata` of it.

    Raises:
        FormatError: The template takes too much time or memory.
        EngineError: llama.cpp refuses the vocabulary.
        ChildDeathError: llama.cpp died of it.
    """
    assert checkpoint.tokenizer.tokenizer_json is not None
    encodings = reference_encodings(checkpoint.tokenizer.tokenizer_json)
    expected = None
    if checkpoint.chat_template is not None:
        arguments = {"chat_template": checkpoint.chat_template, "tokens": special_tokens(checkpoint.tokenizer)}
        with death_blamed_on_template("transformers"):
            expected = run_in_child(f"{__name__}:render", arguments, what="render the chat template", timeout_s=TIMEOUT_S)["rendered"]
    with tempfile.TemporaryDirectory(prefix="ondevice-toolkit-") as folder:
        probe = Path(folder) / "probe.gguf"
        write_probe(probe, vocabulary, checkpoint.chat_template)
        questions = {
            "probe": str(probe),
            "texts": list(encodings),
            "token_ids": list(checkpoint.spec.eos_token_ids),
            "conversations": [list(messages) for messages in CONVERSATIONS] if expected else [],
        }
        got = run_in_child(f"{__name__}:answer", questions, what="ask llama.cpp about the tokenizer", timeout_s=TIMEOUT_S)
    ids = [(text, wanted, answer) for (text, wanted), answer in zip(encodings.items(), got["token_ids"], strict=True) if SPACE not in text]
    bos = special_tokens(checkpoint.tokenizer).get("bos_token", "") if checkpoint.tokenizer.add_bos else ""
    return Proof(
        tokenizer=_differences(ids),
        template=_rendered_differences(expected, got["rendered"], bos) if expected and not got["template_error"] else None,
        template_error=got["template_error"],
        ignored_stop_ids=tuple(i for i, ends in zip(checkpoint.spec.eos_token_ids, got["ends"], strict=True) if not ends),
    )


def _differences(compared: Sequence[tuple[str, Any, Any]]) -> Differences:
    different = [f"{question[:60]!r}: expected {_short(wanted)}, got {_short(got)}" for question, wanted, got in compared if wanted != got]
    return Differences(len(compared), len(different), different[0] if different else "")


def _rendered_differences(expected: Sequence[str | None], rendered: Sequence[str | None], bos: str) -> Differences:
    """llama.cpp leaves out a BOS that tokenizing puts back. A conversation the checkpoint's template refuses counts only if rendered."""
    wanted = [None if text is None else text.removeprefix(bos) for text in expected]
    questions = [str(messages[-1]["content"]) for messages in CONVERSATIONS]
    return _differences(list(zip(questions, wanted, rendered, strict=True)))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def write_probe(path: Path, vocabulary: Mapping[str, Any], chat_template: str | None) -> None:
    """A llama of one layer of zeros with a real vocabulary: all that tokenizing and rendering need."""
    n_tokens = len(vocabulary["tokenizer.ggml.tokens"])
    sizes = {"context_length": _CONTEXT_LENGTH, "embedding_length": _WIDTH, "feed_forward_length": _WIDTH, "block_count": 1}
    sizes |= {"attention.head_count": _HEADS, "vocab_size": n_tokens, "rope.dimension_count": _WIDTH // _HEADS}
    metadata: dict[str, Any] = {"general.architecture": "llama", **{f"llama.{key}": value for key, value in sizes.items()}}
    metadata |= {"llama.attention.layer_norm_rms_epsilon": 1e-5, **vocabulary}
    if chat_template is not None:
        metadata["tokenizer.chat_template"] = chat_template
    matrices = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    tensors = [_zeros("token_embd.weight", n_tokens, _WIDTH), _zeros("output_norm.weight", _WIDTH)]
    tensors += [_zeros(f"blk.0.{name}.weight", _WIDTH, _WIDTH) for name in matrices]
    write_gguf(path, metadata, tensors + [_zeros(f"blk.0.{name}.weight", _WIDTH) for name in ("attn_norm", "ffn_norm")])


def _zeros(name: str, *shape: int) -> PlannedTensor:
    tensor_type = TYPES["F16" if len(shape) == 2 else "F32"]
    n_bytes = stored_bytes(tensor_type, shape)
    return PlannedTensor(name, tensor_type, shape, n_bytes, lambda: iter([bytes(n_bytes)]))


def render(chat_template: str, tokens: dict[str, str]) -> dict[str, Any]:
    """The child's part: every conversation as transformers renders it, None where the template refuses."""
    import transformers.utils.chat_template_utils  # noqa: F401  its memory and time are not the template's

    confine(cpu_s=CPU_S, memory_bytes=MEMORY_BYTES)
    return {"rendered": [render_transformers(chat_template, messages, tokens) for messages in CONVERSATIONS]}


def answer(probe: str, texts: list[str], token_ids: list[int], conversations: list[list[dict[str, str]]]) -> dict[str, Any]:
    """The child's part: token ids of texts, which tokens end an answer, and conversations as llama.cpp renders them."""
    vocabulary = LlamaVocabulary(Path(probe))
    answers: dict[str, Any] = {
        "token_ids": [vocabulary.encode(text) for text in texts],
        "ends": [vocabulary.ends_generation(token_id) for token_id in token_ids],
    }
    confine(cpu_s=CPU_S, memory_bytes=MEMORY_BYTES)
    try:
        return {**answers, "rendered": _rendered_by_server(probe, conversations) if conversations else [], "template_error": ""}
    except RuntimeError as error:
        return {**answers, "rendered": [], "template_error": str(error)}


def _rendered_by_server(probe: str, conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[str | None]:
    """Through llama.cpp's own server, which alone offers its template engine; None where it answers with an error."""
    import xllamacpp

    params, key = xllamacpp.CommonParams(), secrets.token_hex()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup = probe, _CONTEXT_LENGTH, 1, False
    params.cpuparams.n_threads, params.api_keys = 1, [key]
    server = xllamacpp.Server(params)
    return [_post(f"{server.listening_address}/apply-template", {"messages": list(messages)}, key) for messages in conversations]


def _post(url: str, body: Mapping[str, Any], key: str) -> str | None:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with contextlib.suppress(urllib.error.HTTPError):  # it refuses this conversation
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return str(json.load(response)["prompt"])
    return None
