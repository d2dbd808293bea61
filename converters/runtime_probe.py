"""Asking the LiteRT-LM runtime itself what it makes of a template or a tokenizer, before there is a model.

The runtime is loaded in a child process with a probe model (`converters.probe_model`): a template or tokenizer it cannot
bear may end it with a signal, and its messages belong in no user's terminal.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from converters.checkpoint import Piece
from converters.child import ChildDeathError, run_in_child
from converters.confinement import confine
from converters.litertlm import PackagedTokenizer, pack_litertlm
from converters.probe_model import build_probe_model
from converters.sentencepiece_model import PieceType, Vocabulary, build_sentencepiece
from converters.template_source import check_length
from converters.template_texts import ANSWER, Message
from toolkit.errors import BackendUnavailableError, FormatError

_STOP = "<stop>"
_CONTEXT_LENGTH = 4096
CPU_S = 30.0  # all its threads together
TOKENIZER_CPU_S = 300.0  # thousands of texts, and some tokenizers take seconds to load
MEMORY_BYTES = 4 * 2**30  # address space: the runtime reserves far more than it uses
TIMEOUT_S = 900.0  # for a machine on which that much CPU takes so long


@dataclass(frozen=True)
class Rendered:
    """What the runtime made of one conversation: its text, or the reason it gave for refusing."""

    text: str | None
    error: str = ""


@dataclass(frozen=True)
class Dialogue:
    """What the runtime fed to the model in a dialogue of its own: one text before each answer.

    Every answer was `ANSWER` and a stop token, so the model has seen prompts[0], answer, stop, prompts[1], ...
    """

    prompts: tuple[str, ...]
    error: str = ""


@dataclass(frozen=True)
class RuntimeAnswers:
    """Everything one visit to the runtime returned, in the order asked."""

    rendered: tuple[Rendered, ...] = ()
    dialogues: tuple[Dialogue, ...] = ()
    token_ids: tuple[tuple[int, ...], ...] = ()
    decoded: tuple[str, ...] = field(default=())


def render_runtime(template: str, conversations: Sequence[Sequence[Message]], dialogues: Sequence[Sequence[str]] = ()) -> RuntimeAnswers:
    """Render conversations, and let dialogues take place, with the runtime's own template engine.

    Args:
        template: As it would be packed.
        conversations: Messages with `role` and `content`; each ends with a user message, and a prompt for the assistant follows.
        dialogues: For each, the user messages to send one after another.

    Raises:
        BackendUnavailableError: The runtime is not installed.
        ChildDeathError: The runtime died, or took too much time or memory.
        FormatError: A text came out far too long.
    """
    from litert_lm_builder.runtime.proto import llm_metadata_pb2

    metadata = llm_metadata_pb2.LlmMetadata(max_num_tokens=_CONTEXT_LENGTH, jinja_prompt_template=template)
    metadata.llm_model_type.generic_model.SetInParent()
    pieces = [Piece("<unk>", 0.0, PieceType.UNKNOWN), Piece(ANSWER, 0.0, PieceType.NORMAL), Piece(_STOP, 0.0, PieceType.USER_DEFINED)]
    pieces += [Piece(f"<0x{byte:02X}>", 0.0, PieceType.BYTE) for byte in range(256)]
    tokenizer = PackagedTokenizer("sentencepiece", build_sentencepiece(Vocabulary(pieces)), 0, "probe")
    metadata.stop_tokens.add().token_ids.ids.append(2)
    request = {"conversations": [list(messages) for messages in conversations], "dialogues": [list(texts) for texts in dialogues]}
    return _ask(tokenizer, metadata, vocab_size=len(pieces), answer_id=1, stop_id=2, request=request)


def encode_in_runtime(tokenizer: PackagedTokenizer, texts: Sequence[str], vocab_size: int) -> RuntimeAnswers:
    """Encode texts, and decode the ids again, with a packed tokenizer as the runtime reads it.

    Raises:
        BackendUnavailableError: The runtime is not installed.
        FormatError: The runtime died of the tokenizer, or took too much time or memory.
        ToolkitError: The runtime refused the tokenizer.
    """
    from litert_lm_builder.runtime.proto import llm_metadata_pb2

    metadata = llm_metadata_pb2.LlmMetadata(max_num_tokens=_CONTEXT_LENGTH)
    metadata.llm_model_type.generic_model.SetInParent()
    metadata.stop_tokens.add().token_ids.ids.append(1)
    try:
        return _ask(
            tokenizer, metadata, vocab_size=vocab_size, answer_id=0, stop_id=1, request={"texts": list(texts), "cpu_s": TOKENIZER_CPU_S}
        )
    except ChildDeathError as death:
        raise FormatError(
            "tokenizer.json cannot be used",
            why=f"the LiteRT-LM runtime ended with {death.cause} while it encoded the proof texts",
            fix="download the checkpoint again, or convert to another target",
        ) from death


def _ask(
    tokenizer: PackagedTokenizer, metadata: Any, *, vocab_size: int, answer_id: int, stop_id: int, request: dict[str, Any]
) -> RuntimeAnswers:
    metadata.supports_thinking = metadata.supports_function_calling = False
    with tempfile.TemporaryDirectory(prefix="ondevice-toolkit-") as folder:
        model, package = Path(folder, "probe.tflite"), Path(folder, "probe.litertlm")
        model.write_bytes(build_probe_model(vocab_size, answer_id, stop_id, context_length=_CONTEXT_LENGTH))
        pack_litertlm(package, model, tokenizer, metadata.SerializeToString())
        arguments = {"package": str(package), "cpu_s": CPU_S, "memory_bytes": MEMORY_BYTES, **request}
        answers = run_in_child("converters.runtime_probe:answer", arguments, what="ask the LiteRT-LM runtime", timeout_s=TIMEOUT_S)
    return RuntimeAnswers(
        rendered=tuple(Rendered(**entry) for entry in answers["rendered"]),
        dialogues=tuple(Dialogue(tuple(entry["prompts"]), entry["error"]) for entry in answers["dialogues"]),
        token_ids=tuple(tuple(ids) for ids in answers["token_ids"]),
        decoded=tuple(answers["decoded"]),
    )


def answer(
    package: str,
    cpu_s: float,
    memory_bytes: int,
    conversations: Sequence[list[Message]] = (),
    dialogues: Sequence[list[str]] = (),
    texts: Sequence[str] = (),
) -> dict[str, Any]:
    """The child's part: open the package and answer everything asked. Arguments and result are JSON data."""
    try:
        import litert_lm
    except ModuleNotFoundError as error:
        raise BackendUnavailableError(
            "the LiteRT-LM runtime cannot be asked", why=f"{error.name} is not installed", fix="pip install 'ondevice-toolkit[convert]'"
        ) from error
    confine(cpu_s=cpu_s, memory_bytes=memory_bytes)
    with litert_lm.Engine(package, max_num_tokens=_CONTEXT_LENGTH, cache_dir=":nocache") as engine:
        token_ids = [engine.tokenize(text) for text in texts]
        return {
            "rendered": [_render(engine, messages) for messages in conversations],
            "dialogues": [_hold(engine, sent) for sent in dialogues],
            "token_ids": token_ids,
            "decoded": [engine.detokenize(ids) for ids in token_ids],
        }


def _render(engine: Any, messages: list[Message]) -> dict[str, Any]:
    with engine.create_conversation(messages=messages[:-1]) as conversation:
        text, error = _render_next(engine, conversation, messages[-1])
    return {"text": None if error else text, "error": error}


def _hold(engine: Any, sent: list[str]) -> dict[str, Any]:
    import litert_lm

    prompts: list[str] = []
    with engine.create_conversation(sampler_config=litert_lm.SamplerConfig(top_k=1, seed=0)) as conversation:
        for text in sent:
            message = {"role": "user", "content": text}
            prompt, error = _render_next(engine, conversation, message)
            if error:
                return {"prompts": prompts, "error": error}
            prompts.append(prompt)
            conversation.send_message(message)
    return {"prompts": prompts, "error": ""}


def _render_next(engine: Any, conversation: Any, message: Message) -> tuple[str, str]:
    """The text the runtime would feed next, and its complaint if it would not: an empty text alone may be either."""
    library = engine._lib
    library.litert_lm_get_last_error_message.restype = ctypes.c_char_p
    library.litert_lm_clear_last_error()
    text = conversation.render_message_to_string(message)
    check_length(text, "one conversation rendered by the LiteRT-LM runtime")
    complaint = library.litert_lm_get_last_error_message()
    return text, " ".join(complaint.decode(errors="replace").split())[:300] if complaint else ""
