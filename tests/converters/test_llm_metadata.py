from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from converters.llm_metadata import build_llm_metadata, needs_start_token
from converters.template import PackagedTemplate
from tests.converters.small_model import small_spec
from toolkit.errors import FormatError

SPEC = replace(small_spec(), bos_token_id=1, eos_token_ids=(2, 7), pad_token_id=0)
CHAT = PackagedTemplate(True, "{{ messages }}")
BASE = PackagedTemplate(False, None)


def read(data: bytes) -> Any:
    from litert_lm_builder.runtime.proto import llm_metadata_pb2

    return llm_metadata_pb2.LlmMetadata.FromString(data)


def ids(union: Any) -> list[int]:
    return list(union.token_ids.ids)


def test_a_base_model_that_wants_bos_gets_it_as_start_token() -> None:
    metadata = read(build_llm_metadata(SPEC, BASE, add_bos=True, max_num_tokens=512))
    assert ids(metadata.start_token) == [1]
    assert not metadata.HasField("jinja_prompt_template")


@pytest.mark.parametrize("add_bos", [True, False])
def test_a_chat_model_never_gets_a_second_bos(add_bos: bool) -> None:
    assert not read(build_llm_metadata(SPEC, CHAT, add_bos=add_bos, max_num_tokens=512)).HasField("start_token")
    assert not needs_start_token(CHAT, add_bos=add_bos)
    assert needs_start_token(BASE, add_bos=add_bos) is add_bos


def test_every_stop_token_pad_limit_and_template_is_written() -> None:
    metadata = read(build_llm_metadata(SPEC, CHAT, add_bos=False, max_num_tokens=512))
    assert [ids(token) for token in metadata.stop_tokens] == [[2], [7]]
    assert ids(metadata.pad_token) == [0]
    assert metadata.max_num_tokens == 512
    assert metadata.jinja_prompt_template == "{{ messages }}"


@pytest.mark.parametrize(
    ("model_type", "field"),
    [("gemma3_text", "gemma3"), ("qwen2", "qwen2p5"), ("qwen3", "qwen3"), ("llama", "generic_model"), ("gemma2", "generic_model")],
)
def test_the_model_type_is_the_runtimes_own_word(model_type: str, field: str) -> None:
    metadata = read(build_llm_metadata(replace(SPEC, model_type=model_type), CHAT, add_bos=False, max_num_tokens=64))
    assert metadata.llm_model_type.WhichOneof("model_type") == field


def test_a_thinking_template_gets_a_channel_and_another_does_not() -> None:
    thinking = read(build_llm_metadata(SPEC, PackagedTemplate(True, "<think> </think>"), add_bos=False, max_num_tokens=64))
    assert thinking.supports_thinking and [channel.start for channel in thinking.channels] == ["<think>"]
    plain = read(build_llm_metadata(SPEC, CHAT, add_bos=False, max_num_tokens=64))
    assert not plain.supports_thinking and len(plain.channels) == 0


def test_no_stop_token_or_no_bos_where_it_is_needed_is_refused() -> None:
    with pytest.raises(FormatError) as caught:
        build_llm_metadata(replace(SPEC, eos_token_ids=()), CHAT, add_bos=False, max_num_tokens=64)
    assert "no answer would ever end" in caught.value.why
    with pytest.raises(FormatError):
        build_llm_metadata(replace(SPEC, bos_token_id=None), BASE, add_bos=True, max_num_tokens=64)
    assert build_llm_metadata(replace(SPEC, bos_token_id=None), CHAT, add_bos=True, max_num_tokens=64)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_is_not_positive_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        build_llm_metadata(SPEC, CHAT, add_bos=False, max_num_tokens=limit)
