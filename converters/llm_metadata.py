"""llm_metadata.pb: what a LiteRT-LM file says about its model beside the weights.

Message: LlmMetadata of runtime/proto/llm_metadata.proto, as litert-lm-builder ships it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.errors import FormatError

if TYPE_CHECKING:
    from converters.spec import ModelSpec
    from converters.template import PackagedTemplate

# The runtime picks its tool-call and media handling by this field; every family not named here is a generic model.
_MODEL_TYPE_FIELDS = {
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
    "qwen2": "qwen2p5",
    "qwen3": "qwen3",
}
_THINKING = ("<think>", "</think>")


def needs_start_token(template: PackagedTemplate, *, add_bos: bool) -> bool:
    """Whether the runtime must put the BOS token before what it is given.

    It must for a base model whose tokenizer adds BOS to a text. It must not for a chat model: the template is the whole
    prompt, a template that wants BOS writes it, and the runtime would put a second one before it.
    """
    return add_bos and not template.chat


def build_llm_metadata(spec: ModelSpec, template: PackagedTemplate, *, add_bos: bool, max_num_tokens: int) -> bytes:
    """Serialize LlmMetadata.

    Args:
        spec: Gives the BOS and pad ids, every stop id and the model type.
        template: As `package_template` returned it, proven.
        add_bos: Whether the checkpoint's tokenizer puts BOS before a text (`TokenizerFiles.add_bos`).
        max_num_tokens: Prompt and answer the graph's KV cache holds.

    Raises:
        FormatError: The spec names no stop token, or a BOS token is needed and not named.
        ValueError: max_num_tokens is not positive.
    """
    from litert_lm_builder.runtime.proto import llm_metadata_pb2

    if max_num_tokens <= 0:
        raise ValueError(f"max_num_tokens must be positive, got {max_num_tokens}")
    if not spec.eos_token_ids:
        raise _incomplete("it names no stop token, so no answer would ever end")
    metadata = llm_metadata_pb2.LlmMetadata()
    if needs_start_token(template, add_bos=add_bos):
        if spec.bos_token_id is None:
            raise _incomplete("its tokenizer adds a BOS token, but none is named")
        metadata.start_token.token_ids.ids.append(spec.bos_token_id)
    for token_id in spec.eos_token_ids:
        metadata.stop_tokens.add().token_ids.ids.append(token_id)
    if spec.pad_token_id is not None:
        metadata.pad_token.token_ids.ids.append(spec.pad_token_id)
    metadata.max_num_tokens = max_num_tokens
    getattr(metadata.llm_model_type, _MODEL_TYPE_FIELDS.get(spec.model_type, "generic_model")).SetInParent()
    text = template.template or ""
    if template.chat:
        metadata.jinja_prompt_template = text
    metadata.supports_thinking = all(mark in text for mark in _THINKING)
    metadata.supports_function_calling = False
    if metadata.supports_thinking:
        metadata.channels.add(channel_name="thought", start=_THINKING[0], end=_THINKING[1])
    return bytes(metadata.SerializeToString())


def _incomplete(why: str) -> FormatError:
    return FormatError(
        "this checkpoint cannot be packed for LiteRT-LM",
        why=why,
        fix="name the token in generation_config.json (eos_token_id, bos_token_id) and convert again",
    )
