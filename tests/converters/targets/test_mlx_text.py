"""What mlx_lm makes of a bundle's tokenizer, template and stop tokens, and that a difference would be found."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from converters.checkpoint import Checkpoint
from converters.targets.mlx_files import text_files
from converters.targets.mlx_text import prove_text
from converters.template_texts import CONVERSATIONS
from tests.converters.targets.mlx_models import hf_checkpoint, written
from toolkit.errors import FidelityError, FormatError

pytest.importorskip("mlx_lm", reason="pip install 'ondevice-toolkit[mlx]'")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    made = hf_checkpoint(tmp_path_factory.mktemp("source"), "llama", bos_token_id=260, eos_token_id=261, pad_token_id=259)
    return replace(made, chat_template=CHATML)


@pytest.fixture(scope="module")
def bundle(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = written(checkpoint, "fp16", tmp_path_factory.mktemp("out") / "work")
    for name, content in text_files(checkpoint).items():
        (folder / name).write_bytes(content)
    return folder


def test_texts_and_conversations_are_read_as_the_checkpoint_means_them(checkpoint: Checkpoint, bundle: Path) -> None:
    proof = prove_text(checkpoint, bundle)
    assert proof.verified_texts > 300
    assert proof.verified_conversations == len(CONVERSATIONS)


def test_a_base_model_has_no_conversations_to_verify(checkpoint: Checkpoint, bundle: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bundle, tmp_path / "base"))
    (folder / "chat_template.jinja").unlink()
    assert prove_text(replace(checkpoint, chat_template=None), folder).verified_conversations == 0


def test_another_template_in_the_bundle_is_found(checkpoint: Checkpoint, bundle: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bundle, tmp_path / "other"))
    (folder / "chat_template.jinja").write_text(CHATML.replace("assistant\n", "assistant"))
    with pytest.raises(FidelityError, match="renders the chat template differently") as raised:
        prove_text(checkpoint, folder)
    assert raised.value.why.startswith("conversation 1: ")


def test_other_stop_tokens_are_found(checkpoint: Checkpoint, bundle: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bundle, tmp_path / "stop"))
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(config | {"eos_token_id": [5, 261]}))
    with pytest.raises(FidelityError, match="stops at other tokens") as raised:
        prove_text(checkpoint, folder)
    assert "[259, 261], mlx_lm's [5, 261]" in raised.value.why


def test_a_tokenizer_class_that_reads_texts_differently_is_found(checkpoint: Checkpoint, bundle: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bundle, tmp_path / "class"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
    with pytest.raises(FidelityError, match="reads the tokenizer differently"):
        prove_text(checkpoint, folder)


def test_a_template_that_never_ends_is_the_templates_fault(checkpoint: Checkpoint, bundle: Path, tmp_path: Path) -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{{ '' }}{% endfor %}{% endfor %}"
    folder = Path(shutil.copytree(bundle, tmp_path / "endless"))
    (folder / "chat_template.jinja").write_text(endless)
    with pytest.raises(FormatError, match="takes too much to render"):
        prove_text(replace(checkpoint, chat_template=endless), folder)


def test_a_checkpoint_without_tokenizer_json_is_refused(checkpoint: Checkpoint) -> None:
    broken = replace(checkpoint, tokenizer=replace(checkpoint.tokenizer, tokenizer_json=None))
    with pytest.raises(FormatError, match="has no tokenizer"):
        text_files(broken)
