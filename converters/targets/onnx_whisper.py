"""The ONNX target for Whisper: encoder, decoder and tokens as sherpa-onnx opens them (docs/formats/whisper.md)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.rule import Rule, TensorClass
from converters.targets import onnx_codes
from converters.targets.base import Assembled, ConvertOptions, Estimate, Scorer, Workshop
from converters.targets.libraries import installed_versions
from converters.targets.link_or_copy import link_or_copy
from converters.targets.litert_plan import is_planned
from converters.targets.onnx_whisper_files import (
    DECODER_NAME,
    ENCODER_NAME,
    TOKENIZER_NAME,
    TOKENS_NAME,
    encoder_facts,
    text_tokens,
    tokens_txt,
)
from converters.targets.whisper_scorer import WhisperScorer, rule_for
from toolkit.errors import ToolkitError, UsageError

if TYPE_CHECKING:
    from converters.recipe import Recipe
    from converters.speech_checkpoint import SpeechCheckpoint

FACTS_NAME = "lowered.json"
TOOLS = ("numpy", "onnx", "onnxruntime")
FIX = "use fp32, fp16, int8 or int4-g32"
# A graph with its weights is one protobuf message, whose length is a signed 32-bit number.
MAX_GRAPH_BYTES = 2**31 - 2**20
# Peak RSS (ru_maxrss) for whisper-tiny.en, float32 and int8: writing 438 and 236 MiB, with files of 108 and 29 MiB at most and a
# table of 76; measuring 391 and 321, with 144 and 42 MiB of weights. The checkpoint in transformers as `litert_whisper` has it.
# The whole process tree, both recipes at once: 1602 MiB.
BASE_BYTES = 250 * 2**20
WRITE_BYTES_PER_FILE_BYTE, SCORE_BYTES_PER_WEIGHT_BYTE = 2.2, 2.0
REFERENCE_BASE_BYTES, REFERENCE_BYTES_PER_WEIGHT_BYTE = 500 * 2**20, 2.6


class OnnxWhisperTarget:
    """Checkpoint -> encoder.onnx and decoder.onnx (per recipe) -> bundle. Written tensor by tensor, without PyTorch."""

    name = "onnx"
    revision = 1
    reads_hf_directory = False

    def tools(self) -> Mapping[str, str]:
        """Versions of what writes the files."""
        return installed_versions(TOOLS, target=self.name, extra="convert,onnx")

    def check(self, checkpoint: SpeechCheckpoint, recipes: Sequence[Recipe], options: ConvertOptions) -> None:
        """Refuse what onnxruntime's CPU kernels cannot run, and what would not go into a file.

        Raises:
            UsageError: A recipe holds a rule this target cannot carry out, or that does not fit the model.
            FormatError: The tokenizer holds no vocabulary.
            BackendUnavailableError: A library is missing.
        """
        self.tools()
        for recipe in recipes:
            if why := refusal(recipe):
                raise UsageError(f"recipe {recipe.name} cannot be written for Whisper on ONNX", why=why, fix=FIX)
            for file, bits in graph_bits(checkpoint, recipe).items():
                if bits > 8 * MAX_GRAPH_BYTES:
                    why = f"{file} would have {bits / 8 / 2**30:.2f} GiB of weights, an ONNX file without others beside it holds 2"
                    raise UsageError(f"{checkpoint.name} does not fit ONNX as {recipe.name}", why=why, fix="use int8 or int4-g32")
        text_tokens(checkpoint.tokenizer_json, checkpoint.spec)

    def estimate(self, checkpoint: SpeechCheckpoint, recipes: Sequence[Recipe], options: ConvertOptions) -> Estimate:
        """Arithmetic on what the recipes store, all of which `check` let pass."""
        spec = checkpoint.spec
        weights = 4 * spec.n_parameters
        files = [[bits // 8 for bits in graph_bits(checkpoint, recipe).values()] for recipe in recipes]
        table = 4 * spec.vocab_size * spec.hidden_size
        write = BASE_BYTES + int(WRITE_BYTES_PER_FILE_BYTE * max(map(max, files))) + table
        # floats of either width are computed in float32
        held = max(
            weights if recipe.rules[TensorClass.LINEAR].is_float else sum(sizes) for recipe, sizes in zip(recipes, files, strict=True)
        )
        score = BASE_BYTES + int(SCORE_BYTES_PER_WEIGHT_BYTE * held) if options.is_verified else 0
        reference = REFERENCE_BASE_BYTES + int(REFERENCE_BYTES_PER_WEIGHT_BYTE * weights) if options.is_verified else 0
        # this process writes and keeps what it took; others measure, the checkpoint answers in one more
        peak = write + max(score, reference) + (0 if options.is_lean else max(write, score))
        return Estimate(disk_bytes=max(map(sum, files)) + 2**20, peak_memory_bytes=peak)

    def promise(self, checkpoint: SpeechCheckpoint, recipe: Recipe) -> float:
        """Matrices by their rule, with a float16 scale for each group; convolutions, position tables and vectors in float32.

        Raises:
            UsageError: A group_size does not divide a tensor's input axis.
        """
        return sum(graph_bits(checkpoint, recipe).values()) / checkpoint.spec.n_parameters

    def lower(self, checkpoint: SpeechCheckpoint, options: ConvertOptions, workdir: Path, workshop: Workshop) -> Path:
        """Nothing to prepare: every recipe is written from the checkpoint's own tensors."""
        path = workdir / FACTS_NAME
        path.write_text(json.dumps({"model_type": checkpoint.spec.model_type}), encoding="utf-8")
        return path

    def quantize(self, checkpoint: SpeechCheckpoint, lowered: Path, recipe: Recipe, workdir: Path, workshop: Workshop) -> Path:
        """Write a folder with both graphs of one recipe."""
        from converters.targets.onnx_whisper_graph import decoder_model, encoder_model

        def rule_of(name: str, shape: Sequence[int]) -> Rule | None:
            return rule_for(name, shape, recipe.rules)

        out, spec, tensors = workdir / "model", checkpoint.spec, checkpoint.tensors
        out.mkdir()
        facts = encoder_facts(spec, text_tokens(checkpoint.tokenizer_json, spec))
        try:
            (out / ENCODER_NAME).write_bytes(encoder_model(spec, tensors, rule_of, facts).SerializeToString())
            (out / DECODER_NAME).write_bytes(decoder_model(spec, tensors, rule_of).SerializeToString())
        except ValueError as error:
            raise UsageError(
                f"recipe {recipe.name} cannot be written for Whisper on ONNX", why=str(error), fix="use fp32 or int8"
            ) from error
        return out

    def assemble(self, checkpoint: SpeechCheckpoint, model: Path, recipe: Recipe, options: ConvertOptions, bundle_dir: Path) -> Assembled:
        """Take over the graphs, write the tokens beside them, and open all in sherpa-onnx where it is installed."""
        from converters.targets.onnx_whisper_sherpa import opened_by

        spec = checkpoint.spec
        for name in (ENCODER_NAME, DECODER_NAME):
            link_or_copy(model / name, bundle_dir / name)
        tokens = text_tokens(checkpoint.tokenizer_json, spec)
        (bundle_dir / TOKENS_NAME).write_text(tokens_txt(tokens), encoding="ascii")
        (bundle_dir / TOKENIZER_NAME).write_bytes(checkpoint.tokenizer_json)
        by_type = stored_bits_by_type(bundle_dir)
        bits = sum(by_type.values())
        return Assembled(
            entry=ENCODER_NAME,
            tokenizer={
                "kind": "huggingface",
                "verified_texts": 0,
                "reason": "tokenizer.json as the checkpoint has it, and the bytes of its text tokens in tokens.txt",
            },
            chat=False,
            chat_template=None,
            bits_per_weight=bits / spec.n_parameters,
            memory={
                "weights_bytes": bits // 8,
                "kv_cache_bytes_per_token": spec.kv_bytes_per_token(4),
                "cross_kv_cache_bytes": spec.cross_kv_bytes(4),
            },
            stop_token_ids=spec.eos_token_ids,
            as_written={
                "weight_bits_by_type": by_type,
                "kv_cache": "float32",
                "input": "log-mel spectrogram, as many frames as there are up to one window",
                "float": ["convolutions", "position tables", "vectors"],
                "opened_by": opened_by(bundle_dir, spec.n_frames) if options.is_verified else {},
            },
        )

    def extract_model(self, entry: Path, workdir: Path) -> Path:
        """The bundle's own folder holds both graphs."""
        return entry.parent

    def open_scorer(self, model: Path) -> Scorer:
        """Speech models are measured on sound: `open_speech_scorer`."""
        raise ToolkitError(
            "a speech model has no text scorer", why="it answers to sound", fix="report it: measure it with open_speech_scorer"
        )

    def open_speech_scorer(self, model: Path, spec: dict[str, Any]) -> WhisperScorer:
        """The two graphs in onnxruntime."""
        from converters.targets.onnx_whisper_run import WhisperOnnx

        return WhisperScorer(WhisperOnnx(model, spec))


def refusal(recipe: Recipe) -> str:
    """Why Whisper on ONNX cannot be given a recipe; empty if it can."""
    for kind, rule in recipe.rules.items():
        text = "the source's own codes: a Whisper is read from floats" if rule.is_keep else onnx_codes.refusal(rule)
        if text or not rule.is_symmetric:
            return f"[rules.{kind}]: {text or 'affine: symmetric codes are written'}"
    if is_planned(recipe):
        return "rules of single tensors, matrices promoted and rows in int8 are not carried out for speech models"
    if recipe.rules[TensorClass.HEAD] != recipe.rules[TensorClass.EMBEDDING]:
        return "the head is the token table, stored once, so [rules.head] must equal [rules.embedding]"
    return ""


def graph_bits(checkpoint: SpeechCheckpoint, recipe: Recipe) -> dict[str, int]:
    """File -> bits of the weights in it, by arithmetic.

    Raises:
        UsageError: A group_size does not divide a tensor's input axis.
    """
    bits: Counter[str] = Counter()
    for name, shape in checkpoint.tensor_shapes().items():
        rule = rule_for(name, shape, recipe.rules)
        try:
            n_bits = 32 * math.prod(shape) if rule is None else onnx_codes.stored_bits(rule, None, shape)
        except ValueError as error:
            what, why = f"recipe {recipe.name} does not fit {name} in ONNX", f"{error} (shape {tuple(shape)})"
            raise UsageError(what, why=why, fix="use fp16 or fp32, which fit any tensor") from error
        # the encoder's graph also makes the keys and values that the decoder attends to
        is_encoder = name.startswith("model.encoder.") or ".encoder_attn.k_proj." in name or ".encoder_attn.v_proj." in name
        bits[ENCODER_NAME if is_encoder else DECODER_NAME] += n_bits
    return dict(bits)


def stored_bits_by_type(folder: Path) -> dict[str, int]:
    """Bits of the weights in both files by type, from the files themselves; shapes and indices, int64, are none."""
    import onnx

    bits: Counter[str] = Counter()
    for name in (ENCODER_NAME, DECODER_NAME):
        for tensor in onnx.ModelProto.FromString((folder / name).read_bytes()).graph.initializer:
            if tensor.data_type != onnx.TensorProto.INT64:
                bits[onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).name] += 8 * len(tensor.raw_data)
    return dict(bits)


TARGET = OnnxWhisperTarget()
