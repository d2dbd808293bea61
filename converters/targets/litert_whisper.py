"""The LiteRT target for Whisper: one plain .tflite with two signatures, sound in, tokens out (docs/formats/whisper.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.child import run_in_child
from converters.rule import Activations, Algorithm, Granularity, Rule, TensorClass
from converters.targets.base import Assembled, ConvertOptions, Estimate, Scorer, Workshop
from converters.targets.libraries import installed_versions
from converters.targets.litert_plan import is_planned
from converters.targets.litert_quantize import quantizer_entry
from converters.targets.whisper_scorer import WhisperScorer, rule_for
from toolkit.errors import ToolkitError, UsageError

if TYPE_CHECKING:
    from converters.recipe import Recipe
    from converters.speech_checkpoint import SpeechCheckpoint
    from converters.whisper_spec import WhisperSpec

ENTRY, TOKENIZER_NAME = "model.tflite", "tokenizer.json"
TOOLS = ("torch", "litert-torch", "litert-converter", "ai-edge-quantizer", "ai-edge-litert")
GROUP_SIZES = (32, 64, 128)
# Peak RSS of the export of whisper-tiny.en, 1.3 GB, over its 151 MB of weights and the libraries.
EXPORT_BASE_BYTES, EXPORT_BYTES_PER_WEIGHT_BYTE = 900 * 2**20, 3.0
VERIFY_BASE_BYTES, VERIFY_BYTES_PER_WEIGHT_BYTE = 500 * 2**20, 2.6


class LiteRtWhisperTarget:
    """Checkpoint -> model.tflite (float, once) -> model.tflite (per recipe), with tokenizer.json beside it."""

    name = "litert"
    revision = 1
    reads_hf_directory = True

    def tools(self) -> Mapping[str, str]:
        """Versions of what writes the files."""
        return installed_versions(TOOLS, target=self.name)

    def check(self, checkpoint: SpeechCheckpoint, recipes: Sequence[Recipe], options: ConvertOptions) -> None:
        """Refuse what ai-edge-quantizer would write wrongly.

        Raises:
            UsageError: A recipe holds a rule this target cannot carry out.
            BackendUnavailableError: A library is missing.
        """
        self.tools()
        for recipe in recipes:
            why = next((f"[rules.{kind}]: {text}" for kind, rule in recipe.rules.items() if (text := refusal(rule))), "")
            if is_planned(recipe):
                why = why or "rules of single tensors, matrices promoted and rows in int8 are not carried out for speech models"
            if recipe.rules[TensorClass.HEAD] != recipe.rules[TensorClass.LINEAR]:
                why = why or "the head is a linear layer of the graph like any other, so [rules.head] must equal [rules.linear]"
            if why:
                fix = "use fp32, fp16, int8 or int4-g32"
                raise UsageError(f"recipe {recipe.name} cannot be written for Whisper on LiteRT", why=why, fix=fix)

    def estimate(self, checkpoint: SpeechCheckpoint, recipes: Sequence[Recipe], options: ConvertOptions) -> Estimate:
        """Arithmetic on the parameter count."""
        weights = 4 * checkpoint.spec.n_parameters
        lower = EXPORT_BASE_BYTES + int(EXPORT_BYTES_PER_WEIGHT_BYTE * weights)
        verify = VERIFY_BASE_BYTES + int(VERIFY_BYTES_PER_WEIGHT_BYTE * weights)
        return Estimate(disk_bytes=3 * weights, peak_memory_bytes=lower, warm_peak_memory_bytes=verify)

    def promise(self, checkpoint: SpeechCheckpoint, recipe: Recipe) -> float:
        """Matrices by their rule; convolutions, position tables, vectors and the graph's own constants in float32.

        Raises:
            UsageError: A group_size does not divide a tensor's input axis.
        """
        spec = checkpoint.spec
        bits = 32 * graph_constants(spec)
        for name, shape in checkpoint.tensor_shapes().items():
            rule = rule_for(name, shape, recipe.rules)
            try:
                bits += 32 * math.prod(shape) if rule is None else rule.stored_bits(shape)
            except ValueError as error:
                raise UsageError(
                    f"recipe {recipe.name} does not fit {name}", why=str(error), fix="use int8, whose groups are whole rows"
                ) from error
        return bits / spec.n_parameters

    def lower(self, checkpoint: SpeechCheckpoint, options: ConvertOptions, workdir: Path, workshop: Workshop) -> Path:
        """Write the float .tflite once for all recipes."""
        arguments = {"hf_dir": str(workshop.hf_dir()), "spec": json.dumps(checkpoint.spec.as_dict()), "out_dir": str(workdir)}
        what = f"lower {checkpoint.name} to LiteRT"
        return Path(run_in_child("converters.targets.litert_whisper_export:export_whisper", arguments, what=what)["model"])

    def quantize(self, checkpoint: SpeechCheckpoint, lowered: Path, recipe: Recipe, workdir: Path, workshop: Workshop) -> Path:
        """Write the .tflite of one recipe."""
        out = workdir / ENTRY
        arguments = {"model": str(lowered), "recipe": quantizer_recipe(recipe.rules), "out": str(out)}
        run_in_child("converters.targets.litert_quantize:quantize_file", arguments, what=f"quantize to {recipe.name}")
        return out

    def assemble(self, checkpoint: SpeechCheckpoint, model: Path, recipe: Recipe, options: ConvertOptions, bundle_dir: Path) -> Assembled:
        """Copy the model, write the tokenizer beside it."""
        import shutil

        from converters.targets.litert_file import stored_weights

        spec = checkpoint.spec
        shutil.copyfile(model, bundle_dir / ENTRY)
        (bundle_dir / TOKENIZER_NAME).write_bytes(checkpoint.tokenizer_json)
        stored = stored_weights(model)
        return Assembled(
            entry=ENTRY,
            tokenizer={
                "kind": "huggingface",
                "verified_texts": 0,
                "reason": "tokenizer.json as the checkpoint has it; decoding needs its vocabulary alone",
            },
            chat=False,
            chat_template=None,
            bits_per_weight=stored.bits / spec.n_parameters,
            memory={
                "weights_bytes": stored.bits // 8,
                "kv_cache_bytes_per_token": spec.kv_bytes_per_token(4),
                "cross_kv_cache_bytes": spec.cross_kv_bytes(4),
            },
            stop_token_ids=spec.eos_token_ids,
            as_written={
                "weights_by_type": stored.weights_by_type,
                "kv_cache": "float32",
                "input": "waveform, 16 kHz, one window",
                "float": ["log-mel front end", "convolutions", "position tables", "vectors"],
            },
        )

    def extract_model(self, entry: Path, workdir: Path) -> Path:
        """The entry itself: it is the model."""
        return entry

    def open_scorer(self, model: Path) -> Scorer:
        """Speech models are measured on sound: `open_speech_scorer`."""
        raise ToolkitError(
            "a speech model has no text scorer", why="it answers to sound", fix="report it: measure it with open_speech_scorer"
        )

    def open_speech_scorer(self, model: Path, spec: dict[str, Any]) -> WhisperScorer:
        """The .tflite through the very runtime that ships, toolkit.speech."""
        from toolkit.speech.whisper_litert import WhisperLiteRt

        return WhisperScorer(WhisperLiteRt(model, spec, name=model.name))


def graph_constants(spec: WhisperSpec) -> int:
    """4-byte values the graph holds beside the checkpoint's.

    Windowed waves of the spectrum, mel filters, what is never said; where each sample of the mirrored sound comes from, and the
    positions that a step's own is compared with.
    """
    from toolkit.speech.log_mel import FRAME_LENGTH, N_BINS

    floats = 2 * N_BINS * FRAME_LENGTH + spec.n_mels * N_BINS + spec.vocab_size
    return floats + spec.n_samples + FRAME_LENGTH + spec.max_context_length


def refusal(rule: Rule) -> str:
    """Why Whisper on LiteRT cannot be given this rule; empty if it can."""
    if rule.is_float:
        return ""
    if rule.algorithm is not Algorithm.ROUND or not rule.is_symmetric or rule.activations is not Activations.INT8_DYNAMIC:
        return f"{rule.algorithm}, {'symmetric' if rule.is_symmetric else 'affine'}: round, symmetric, int8-dynamic is carried out"
    if rule.bits == 8 and rule.granularity is Granularity.CHANNEL:
        return ""
    if rule.bits == 4 and rule.granularity is Granularity.BLOCKWISE and rule.group_size in GROUP_SIZES:
        return ""
    return f"{rule.bits} bits by {rule.granularity}: 8 by channel, and 4 in groups of {', '.join(map(str, GROUP_SIZES))} are written"


def quantizer_recipe(rules: Mapping[TensorClass, Rule]) -> list[dict[str, Any]]:
    """ai-edge-quantizer's recipe: by operation, so that convolutions and the front end, which no rule names, stay in float."""
    operations = {"FULLY_CONNECTED": rules[TensorClass.LINEAR], "EMBEDDING_LOOKUP": rules[TensorClass.EMBEDDING]}
    if all(rule.bits == 32 for rule in operations.values()):
        return []
    return [quantizer_entry(operation, rule) for operation, rule in operations.items()]


TARGET = LiteRtWhisperTarget()
