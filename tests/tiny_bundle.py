"""A real LiteRT bundle in seconds: a random two-layer llama with 311 tokens, exported once and kept in the user's cache.

Run as a script it exports into a folder; imported, `tiny_bundle` returns a sealed bundle. Greedy decoding of this model never
stops and is ASCII (the rows of the stop token and of high bytes are zero), sampling at temperature 100 soon stops.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path
from typing import Any

CONTEXT_LENGTH = 4096
VOCAB_SIZE = 311
STOP_TOKEN_ID = 2
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_EXPORT_TOOLS = ("litert-torch", "litert-converter", "litert-lm-builder", "torch", "transformers", "tokenizers")


def tiny_model() -> Path:
    """The .litertlm file, exported on first use (half a minute) and kept by what decides its content."""
    from toolkit.cache import cache_directory, locked

    versions = [metadata.version(tool) for tool in _EXPORT_TOOLS]
    made_by = [inspect.getsource(_write_checkpoint), inspect.getsource(_export), CHAT_TEMPLATE, CONTEXT_LENGTH, VOCAB_SIZE, *versions]
    key = hashlib.sha256(json.dumps(made_by).encode()).hexdigest()[:16]
    kept = cache_directory("tests", "tiny") / f"{key}.litertlm"
    with locked(kept.with_suffix(".lock")):
        if not kept.exists():
            folder = kept.with_suffix(".building")
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, __file__, str(folder)], check=True, stdout=subprocess.DEVNULL)
            os.replace(folder / "model.litertlm", kept)
            shutil.rmtree(folder)
    return kept


def can_export() -> bool:
    """Whether the export tools are installed."""
    return util.find_spec("litert_torch") is not None


def tiny_bundle(folder: Path, *, model: Path, chat: bool = True, **changes: Any) -> Path:
    """Write a bundle of the model into `folder`, with further fields of its manifest as `changes`; returns the folder."""
    from toolkit.manifest import MANIFEST_NAME, FileRecord, LicenseRecord, Manifest, SourceRecord

    folder.mkdir(parents=True)
    shutil.copyfile(model, folder / "model.litertlm")
    data = model.read_bytes()
    fields: dict[str, Any] = {
        "name": folder.name,
        "target": "litert",
        "recipe": {"name": "fp32"},
        "spec": {"model_type": "llama", "vocab_size": VOCAB_SIZE},
        "source": SourceRecord("random"),
        "license": LicenseRecord("Apache-2.0"),
        "context_length": CONTEXT_LENGTH,
        "chat": chat,
        "chat_template": CHAT_TEMPLATE if chat else None,
        "tokenizer": {"kind": "huggingface", "verified_texts": 0},
        "stop_token_ids": (STOP_TOKEN_ID,),
        "bits_per_weight": 32.0,
        "files": (FileRecord("model.litertlm", len(data), hashlib.sha256(data).hexdigest()),),
        "tools": {tool: metadata.version(tool) for tool in _EXPORT_TOOLS},
        "created_at": "2026-11-30T00:00:00+00:00",
        "entry": "model.litertlm",
    }
    (folder / MANIFEST_NAME).write_text(Manifest(**{**fields, **changes}).to_json(), encoding="utf-8")
    return folder


def _write_checkpoint(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet, show_progress=False)
    text = "the quick brown fox jumps over the lazy dog. check the pump and the valve of the station. "
    tokenizer.train_from_iterator([text] * 4, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": SPECIAL_TOKENS[1], "eos_token": SPECIAL_TOKENS[2], "pad_token": SPECIAL_TOKENS[0]}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT_LENGTH, "chat_template": CHAT_TEMPLATE, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))

    torch.manual_seed(7)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    ids = {"bos_token_id": 1, "eos_token_id": STOP_TOKEN_ID, "pad_token_id": 0, "vocab_size": VOCAB_SIZE}
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    limits = {"max_position_embeddings": CONTEXT_LENGTH, "tie_word_embeddings": True, "initializer_range": 0.3}
    model = LlamaForCausalLM(LlamaConfig(**shape, **ids, **limits)).float().eval()
    words = [tokenizer.decode([token_id], skip_special_tokens=True) for token_id in range(VOCAB_SIZE)]
    silent = [token_id for token_id, word in enumerate(words) if not (word and word.isprintable() and word.isascii())]
    with torch.no_grad():
        model.model.embed_tokens.weight[silent] = 0.0
    model.save_pretrained(folder)


def _export(folder: Path) -> None:
    """litert-torch asks TensorFlow for one schema module that ai-edge-litert has as well."""
    import types

    from ai_edge_litert import schema_py_generated

    for name in ("tensorflow", "tensorflow.lite", "tensorflow.lite.python"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["tensorflow.lite.python"].schema_py_generated = schema_py_generated  # type: ignore[attr-defined]
    sys.modules["tensorflow.lite.python.schema_py_generated"] = schema_py_generated
    from litert_torch.generative.export_hf import export

    export.export(
        model=str(folder),
        output_dir=str(folder),
        prefill_lengths=[16, 64],
        cache_length=CONTEXT_LENGTH,
        quantization_recipe="none",
        keep_temporary_files=True,
        experimental_lightweight_conversion=True,
        enable_gpu_dynamic_cache=True,
    )


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    place = Path(sys.argv[1])
    place.mkdir(parents=True)
    _write_checkpoint(place)
    _export(place)
