from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from converters.checkpoint import TokenizerFiles
from converters.litertlm import PackagedTokenizer, pack_litertlm
from converters.llm_metadata import build_llm_metadata
from converters.probe_model import build_probe_model
from converters.template import PackagedTemplate, package_template
from converters.tokenizer import choose_tokenizer
from tests.converters.small_model import small_spec
from tests.tiny_bundle import CHAT_TEMPLATE, can_export, tiny_model
from toolkit.errors import ToolkitError

TOKENIZER = PackagedTokenizer("huggingface", b"{}", 0, "for tests")
TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def metadata() -> bytes:
    return build_llm_metadata(small_spec(), PackagedTemplate(True, "{{ messages }}"), add_bos=False, max_num_tokens=64)


def sections(path: Path) -> list[str]:
    import io

    from litert_lm_builder.litertlm_peek import peek_litertlm_file

    out = io.StringIO()
    peek_litertlm_file(str(path), None, out)
    return [line for line in out.getvalue().splitlines() if "Data Type" in line]


def test_a_packed_file_holds_metadata_tokenizer_and_model_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    model = tmp_path / "model.tflite"
    model.write_bytes(build_probe_model(96, 5, 2))
    pack_litertlm(tmp_path / "out.litertlm", model, TOKENIZER, metadata())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.tflite", "out.litertlm"]
    data = (tmp_path / "out.litertlm").read_bytes()
    assert data.startswith(b"LITERTLM")
    assert model.read_bytes() in data and metadata() in data


def test_the_same_parts_give_the_same_file_and_another_model_another_uuid(tmp_path: Path) -> None:
    import re

    uuids = []
    for name, stop in (("a", 2), ("b", 2), ("c", 3)):
        (tmp_path / "model.tflite").write_bytes(build_probe_model(96, 5, stop))
        pack_litertlm(tmp_path / name, tmp_path / "model.tflite", TOKENIZER, metadata())
        header = (tmp_path / name).read_bytes()[:16384]
        uuids += re.findall(rb"[0-9a-f]{8}-[0-9a-f-]{27}", header)
        assert b"1970-01-01T00:00:00" in header
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert len(uuids) == 3 and uuids[0] != uuids[2]


@pytest.mark.parametrize(("kind", "word"), [("sentencepiece", "SP_Tokenizer"), ("huggingface", "HF_Tokenizer_Zlib")])
def test_the_tokenizers_kind_decides_its_section(tmp_path: Path, kind: Any, word: str) -> None:
    (tmp_path / "model.tflite").write_bytes(build_probe_model(96, 5, 2))
    pack_litertlm(tmp_path / "out.litertlm", tmp_path / "model.tflite", replace(TOKENIZER, kind=kind), metadata())
    assert any(word in line for line in sections(tmp_path / "out.litertlm"))


def test_a_full_disk_leaves_no_file_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    (tmp_path / "model.tflite").write_bytes(build_probe_model(96, 5, 2))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("converters.litertlm.os.fsync", full)
    with pytest.raises(ToolkitError) as caught:
        pack_litertlm(tmp_path / "out.litertlm", tmp_path / "model.tflite", TOKENIZER, metadata())
    assert caught.value.exit_code == 3
    assert [path.name for path in tmp_path.iterdir()] == ["model.tflite"]


class Greedy:
    """The random checkpoint of `tiny_bundle` in PyTorch."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer
        from transformers import AutoModelForCausalLM

        from tests.tiny_bundle import _write_checkpoint

        _write_checkpoint(folder)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._model = AutoModelForCausalLM.from_pretrained(folder).eval()

    def ids(self, text: str) -> list[int]:
        encoded: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return encoded

    def go_on(self, token_ids: list[int], n_tokens: int) -> list[int]:
        import torch

        with torch.no_grad():
            whole = list(token_ids)
            for _ in range(n_tokens):
                whole.append(int(self._model(torch.tensor([whole])).logits[0, -1].argmax()))
        return whole[len(token_ids) :]


@pytest.mark.skipif(not can_export(), reason="needs the export tools")
def test_two_turns_in_the_runtime_equal_pytorch_on_the_whole_conversation(tmp_path: Path) -> None:
    import litert_lm

    from converters.targets.litert_sections import extract_tflite

    checkpoint = Greedy(tmp_path)
    first = checkpoint.ids(TURN.format("check the pump"))
    answer = checkpoint.go_on(first, 30)
    length = next(n for n in range(4, 30) if answer[n] not in answer[:n])
    stop = answer[length]  # as if this token ended an answer, so that the first turn stops by itself
    second = checkpoint.ids("\n" + TURN.format("and the valve"))
    wanted = checkpoint.go_on(first + answer[: length + 1] + second, 30)
    without_newline = checkpoint.go_on(first + answer[: length + 1] + second[1:], 30)
    assert wanted != without_newline, "the newline after the stop token must matter, or this test shows nothing"

    template = package_template(CHAT_TEMPLATE, stop_texts=["<|im_end|>"])
    tokenizer = choose_tokenizer(TokenizerFiles("bpe-byte-level", (tmp_path / "tokenizer.json").read_bytes(), None, add_bos=False))
    spec = replace(small_spec(), bos_token_id=1, eos_token_ids=(stop,))
    packed = build_llm_metadata(spec, template, add_bos=False, max_num_tokens=4096)
    extract_tflite(tiny_model(), tmp_path / "model.tflite")
    pack_litertlm(tmp_path / "tiny.litertlm", tmp_path / "model.tflite", tokenizer, packed)
    with litert_lm.Engine(str(tmp_path / "tiny.litertlm"), max_num_tokens=256, cache_dir=":nocache") as engine:
        greedy = litert_lm.SamplerConfig(top_k=1, seed=0)
        with engine.create_conversation(sampler_config=greedy) as conversation:
            texts = [conversation.send_message(text, max_output_tokens=30).to_json() for text in ("check the pump", "and the valve")]
    got = ["".join(part["text"] for part in text["content"]) for text in texts]
    ended = wanted[: wanted.index(stop)] if stop in wanted else wanted
    assert got == [checkpoint.tokenizer.decode(answer[:length]), checkpoint.tokenizer.decode(ended)]
