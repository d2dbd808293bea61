"""Asking llama.cpp itself what it makes of a tokenizer and a chat template, before any weight is written.

It is given a probe: a GGUF file with the real vocabulary and template and one layer of zeros. Loading and rendering happen in
child processes, since a vocabulary it cannot bear ends it with a signal and a template is a program by a stranger; each has one of
its own, so that it answers for itself.
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
from converters.read.piece_merges import SPACE
from converters.targets.gguf_plan import PlannedTensor
from converters.targets.gguf_storage import TYPES, stored_bytes
from converters.targets.gguf_write import write_gguf
from converters.targets.llama_cpp import DISTRIBUTION, LlamaVocabulary
from converters.template_source import confined, death_blamed_on_template
from converters.template_texts import CONVERSATIONS
from converters.tokenizer import Difference, reference_encodings, special_tokens
from toolkit.errors import EngineError

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint

CPU_S = 60.0
MEMORY_BYTES = 4 * 2**30
TIMEOUT_S = 900.0  # for a machine on which 60 s of CPU take that long
_WIDTH, _HEADS = 32, 2
_CONTEXT_LENGTH = 256
_WITHOUT = f"pip uninstall {DISTRIBUTION}, and GGUF bundles are measured in PyTorch, their chat template unproven"


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
        template: Conversations rendered differently from transformers; None for a base model, or where it was not asked.
        template_error: Why llama.cpp does not take the template at all; empty if it does.
        ignored_stop_ids: Stop tokens at which llama.cpp would not stop.
    """

    tokenizer: Differences
    template: Differences | None
    template_error: str
    ignored_stop_ids: tuple[int, ...]


def prove(checkpoint: Checkpoint, vocabulary: Mapping[str, Any], expected: Sequence[str | None]) -> Proof:
    """Compare llama.cpp's reading of a vocabulary and template with the checkpoint's own.

    Args:
        checkpoint: Its tokenizer.json and template are the reference.
        vocabulary: `tokenizer_metadata` of it.
        expected: `expected_conversations` of it. Only asked about where the vocabulary is read as it should be.

    Raises:
        FormatError: The template takes too much time or memory.
        EngineError: llama.cpp refuses the vocabulary, or its server does not start whatever the template is.
        ChildDeathError: llama.cpp died of the vocabulary.
    """
    encodings = reference_encodings(checkpoint.tokenizer.require_json())
    stop_ids = checkpoint.spec.eos_token_ids
    with tempfile.TemporaryDirectory(prefix="ondevice-toolkit-") as folder:
        probe, plain = Path(folder) / "probe.gguf", Path(folder) / "plain.gguf"
        write_probe(plain, vocabulary, None)
        questions = {"probe": str(plain), "texts": list(encodings), "token_ids": list(stop_ids)}
        got = run_in_child(f"{__name__}:read_texts", questions, what="ask llama.cpp about the tokenizer", timeout_s=TIMEOUT_S)
        pairs = zip(encodings.items(), got["token_ids"], strict=True)
        tokenizer = _differences([(text, wanted, answer) for (text, wanted), answer in pairs if SPACE not in text])
        rendered = None
        if expected and not tokenizer.n_different:
            write_probe(probe, vocabulary, checkpoint.chat_template)
            rendered = _ask_template(probe, plain)
    bos = special_tokens(checkpoint.tokenizer).get("bos_token", "") if checkpoint.tokenizer.add_bos else ""
    return Proof(
        tokenizer=tokenizer,
        template=_rendered_differences(expected, rendered["rendered"], bos) if rendered and not rendered["template_error"] else None,
        template_error=rendered["template_error"] if rendered else "",
        ignored_stop_ids=tuple(i for i, ends in zip(stop_ids, got["ends"], strict=True) if not ends),
    )


def _ask_template(probe: Path, plain: Path) -> dict[str, Any]:
    places, limits = {"probe": str(probe), "plain": str(plain)}, {"cpu_s": CPU_S, "memory_bytes": MEMORY_BYTES}
    with death_blamed_on_template("llama.cpp"):
        what = "ask llama.cpp about the chat template"
        return run_in_child(f"{__name__}:render", {**places, **limits}, what=what, timeout_s=TIMEOUT_S)


def _differences(compared: Sequence[tuple[str, Any, Any]]) -> Differences:
    different = [Difference(question, wanted, got) for question, wanted, got in compared if wanted != got]
    return Differences(len(compared), len(different), str(different[0]) if different else "")


def _rendered_differences(expected: Sequence[str | None], rendered: Sequence[str | None], bos: str) -> Differences:
    """llama.cpp leaves out a BOS that tokenizing puts back. A conversation the checkpoint's template refuses counts only if rendered."""
    wanted = [None if text is None else text.removeprefix(bos) for text in expected]
    questions = [str(messages[-1]["content"]) for messages in CONVERSATIONS]
    return _differences(list(zip(questions, wanted, rendered, strict=True)))


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


def read_texts(probe: str, texts: list[str], token_ids: list[int]) -> dict[str, Any]:
    """A child's part: token ids of texts, and which tokens end an answer."""
    vocabulary = LlamaVocabulary(Path(probe))
    ends = [vocabulary.ends_generation(token_id) for token_id in token_ids]
    return {"token_ids": [vocabulary.encode(text) for text in texts], "ends": ends}


def render(probe: str, plain: str, cpu_s: float, memory_bytes: int) -> dict[str, Any]:
    """A child's part: every conversation as llama.cpp renders it, None where it answers with an error; or why it takes no such template.

    It goes through llama.cpp's own server, which alone offers its template engine.
    """
    import xllamacpp  # noqa: F401  its memory and time are not the template's

    with confined("llama.cpp", cpu_s=cpu_s, memory_bytes=memory_bytes):
        try:
            server, key = _started(probe)
        except RuntimeError as error:
            _require_server(plain)
            return {"rendered": [], "template_error": str(error)}
        url = f"{server.listening_address}/apply-template"
        rendered = [_post(url, {"messages": list(messages)}, key) for messages in CONVERSATIONS]
        return {"rendered": rendered, "template_error": ""}


def _started(probe: str) -> tuple[Any, str]:
    """The server with a probe, and the key it wants to be shown."""
    import xllamacpp

    params, key = xllamacpp.CommonParams(), secrets.token_hex()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup = probe, _CONTEXT_LENGTH, 1, False
    params.cpuparams.n_threads, params.api_keys = 1, [key]
    return xllamacpp.Server(params), key


def _require_server(plain: str) -> None:
    """Raises EngineError where the server does not start with a probe that has no template either: then it is not the template's fault."""
    try:
        _started(plain)
    except RuntimeError as error:
        why = " ".join(str(error).split())[:300]
        raise EngineError("llama.cpp's server does not start, so the chat template could not be proven", why=why, fix=_WITHOUT) from error


def _post(url: str, body: Mapping[str, Any], key: str) -> str | None:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with contextlib.suppress(urllib.error.HTTPError):  # it refuses this conversation
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return str(json.load(response)["prompt"])
    return None
