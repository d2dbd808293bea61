"""The LiteRT target: a `.litertlm` file for LiteRT-LM, lowered by litert-torch and quantized by ai-edge-quantizer."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.child import run_in_child
from converters.targets import other_targets
from converters.targets.base import Assembled, ConvertOptions, Estimate, Scorer, Workshop
from converters.targets.libraries import installed_versions
from converters.targets.litert_export import SCORE_LENGTH
from converters.targets.litert_gemmas import unmeasured
from converters.targets.proven_once import ProvenOnce
from converters.targets.reference_memory import reference_peak_bytes
from toolkit.errors import UnsupportedModelError, UsageError

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint
    from converters.litertlm import PackagedTokenizer
    from converters.recipe import Recipe
    from converters.template import PackagedTemplate

ENTRY = "model.litertlm"
FACTS_NAME = "lowered.json"
PLANNED_FACTS_NAME = "planned.json"
TOOLS = ("torch", "transformers", "litert-torch", "litert-converter", "ai-edge-quantizer", "ai-edge-litert", "litert-lm-builder")
MODEL_TYPES = ("gemma", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "llama", "qwen2", "qwen3")
# Peak RSS of the export beside its float32 weights, measured with benchmarks/conversion_cost.py on both real models.
EXPORT_BYTES_PER_WEIGHT_BYTE = 2.6
EXPORT_BASE_BYTES = 700 * 2**20
VERIFY_BYTES_PER_WEIGHT_BYTE = 2.6
VERIFY_BASE_BYTES = 500 * 2**20
GRAPH_BYTES_PER_LAYER = 2**20


class LiteRtTarget:
    """Checkpoint -> model.tflite (float, once) -> model.tflite (per recipe) -> model.litertlm."""

    name = "litert"
    revision = 2
    reads_hf_directory = True

    def __init__(self) -> None:
        self._proven = ProvenOnce[tuple["PackagedTokenizer", "PackagedTemplate"]]()

    def tools(self) -> Mapping[str, str]:
        """Versions of what writes the files."""
        return installed_versions(TOOLS, target=self.name)

    def check(self, checkpoint: Checkpoint, recipes: Sequence[Recipe], options: ConvertOptions) -> None:
        """Refuse what litert-torch cannot lower and what ai-edge-quantizer would write wrongly.

        Raises:
            UnsupportedModelError: The architecture is not one of `MODEL_TYPES`.
            UsageError: A recipe holds a rule LiteRT cannot carry out.
            FormatError: The tokenizer or the template is damaged.
            FidelityError: The runtime would render the chat template differently from transformers.
            BackendUnavailableError: A library is missing.
        """
        self.tools()
        if checkpoint.spec.model_type not in MODEL_TYPES:
            raise UnsupportedModelError(
                f"{checkpoint.name} cannot be lowered to LiteRT",
                why=f"its model_type is {checkpoint.spec.model_type}; lowered and checked are {', '.join(MODEL_TYPES)}",
                fix=other_targets(self.name, checkpoint.spec.model_type),
            )
        if refused := unmeasured(checkpoint.spec, recipes):
            raise UnsupportedModelError(f"{checkpoint.name} cannot be lowered to LiteRT", why=refused.why, fix=refused.fix)
        if options.context_length < SCORE_LENGTH:
            raise UsageError(
                f"--context {options.context_length} is too short for LiteRT",
                why=f"prompts are taken in chunks of up to {SCORE_LENGTH} tokens, and a chunk must fit",
                fix=_longer_context(checkpoint),
            )
        for recipe in recipes:
            _check_recipe(checkpoint, recipe)
        self._tokenizer_and_template(checkpoint)

    def estimate(self, checkpoint: Checkpoint, recipes: Sequence[Recipe], options: ConvertOptions) -> Estimate:
        """Arithmetic on the parameter count; the factors are measured, see `EXPORT_BYTES_PER_WEIGHT_BYTE`."""
        from converters.targets.litert_calibration import peak_bytes

        weights = 4 * checkpoint.spec.n_parameters
        graph = checkpoint.spec.n_layers * GRAPH_BYTES_PER_LAYER * (len(options.prefill_lengths) + 2)
        lower = EXPORT_BASE_BYTES + int(EXPORT_BYTES_PER_WEIGHT_BYTE * weights) + graph
        verify = VERIFY_BASE_BYTES + int(VERIFY_BYTES_PER_WEIGHT_BYTE * weights)
        calibrate, second = sorted((0, 0, *(peak_bytes(checkpoint, recipe) for recipe in recipes)), reverse=True)[:2]
        answers = reference_peak_bytes(checkpoint.spec) if options.is_verified else 0
        beside = 0 if options.is_lean else max(answers, second)
        return Estimate(
            disk_bytes=3 * weights + graph,
            peak_memory_bytes=max(lower, calibrate) + beside,
            warm_peak_memory_bytes=max(verify, calibrate) + beside,
        )

    def promise(self, checkpoint: Checkpoint, recipe: Recipe) -> float:
        """What the recipe's own arithmetic says: symmetric codes and one scale a row or block, and what offsets take."""
        from converters.targets import litert_plan

        if litert_plan.is_planned(recipe):
            return litert_plan.promise(checkpoint, recipe)
        return recipe.promised_bits_per_weight(checkpoint.tensor_shapes(), is_tied=checkpoint.spec.tie_embeddings)

    def lower(self, checkpoint: Checkpoint, options: ConvertOptions, workdir: Path, workshop: Workshop) -> Path:
        """Write the float .tflite once for all recipes."""
        arguments = {
            "hf_dir": str(workshop.hf_dir()),
            "out_dir": str(workdir),
            "prefill_lengths": list(options.prefill_lengths) or [16],
            "context_length": options.context_length,
        }
        done = run_in_child("converters.targets.litert_export:export_float", arguments, what=f"lower {checkpoint.name} to LiteRT")
        facts = {"model_type": checkpoint.spec.model_type, "cache_length": done["cache_length"]}
        (workdir / FACTS_NAME).write_text(json.dumps(facts), encoding="utf-8")
        return Path(done["model"])

    def quantize(self, checkpoint: Checkpoint, lowered: Path, recipe: Recipe, workdir: Path, workshop: Workshop) -> Path:
        """Write the .tflite of one recipe."""
        from converters.targets import litert_plan
        from converters.targets.litert_quantize import quantizer_recipe

        if litert_plan.is_planned(recipe) or litert_plan.scales_channels(recipe, checkpoint.spec.model_type):
            return _write_planned(checkpoint, lowered, recipe, workdir, workshop)
        rules = {str(kind): rule for kind, rule in recipe.rules.items()}
        out = workdir / "model.tflite"
        arguments = {"model": str(lowered), "recipe": quantizer_recipe(rules), "out": str(out)}
        run_in_child("converters.targets.litert_quantize:quantize_file", arguments, what=f"quantize to {recipe.name}")
        return out

    def assemble(self, checkpoint: Checkpoint, model: Path, recipe: Recipe, options: ConvertOptions, bundle_dir: Path) -> Assembled:
        """Pack model, proven tokenizer and proven template into `model.litertlm`."""
        from converters.litertlm import pack_litertlm
        from converters.llm_metadata import build_llm_metadata
        from converters.targets.litert_file import stored_weights

        spec = checkpoint.spec
        tokenizer, template = self._tokenizer_and_template(checkpoint)
        llm_metadata = build_llm_metadata(spec, template, add_bos=checkpoint.tokenizer.add_bos, max_num_tokens=options.context_length)
        pack_litertlm(bundle_dir / ENTRY, model, tokenizer, llm_metadata)
        stored = stored_weights(model)
        return Assembled(
            entry=ENTRY,
            tokenizer=tokenizer.as_manifest(),
            chat=template.chat,
            chat_template=template.template,
            bits_per_weight=stored.bits / spec.n_parameters,
            memory={"weights_bytes": stored.bits // 8, "kv_cache_bytes_per_token": spec.kv_bytes_per_token(4)},
            stop_token_ids=spec.eos_token_ids,
            as_written={
                "algorithms": {str(kind): str(rule.algorithm) for kind, rule in recipe.rules.items()},
                **_as_planned(checkpoint, model, recipe),
                "weights_by_type": stored.weights_by_type,
                "kv_cache": "float32",
                "prefill_lengths": list(options.prefill_lengths),
                "chat_template": {
                    "verified_conversations": template.verified_conversations,
                    "exact_turns": template.exact_turns,
                    "rewrites": list(template.rewrites),
                },
            },
        )

    def _tokenizer_and_template(self, checkpoint: Checkpoint) -> tuple[PackagedTokenizer, PackagedTemplate]:
        return self._proven.get(checkpoint.content_hash, lambda: _proven_texts(checkpoint))

    def extract_model(self, entry: Path, workdir: Path) -> Path:
        """The model.tflite section of a `.litertlm` file."""
        from converters.targets.litert_sections import extract_tflite

        return extract_tflite(entry, workdir / "model.tflite")

    def open_scorer(self, model: Path) -> Scorer:
        """The .tflite in ai-edge-litert's CompiledModel."""
        from converters.targets.litert_run import LiteRtGraph

        return LiteRtGraph(model)


def _longer_context(checkpoint: Checkpoint) -> str:
    """What to do about a context that is too short; no model can be given more than it was trained for."""
    is_enough = checkpoint.spec.max_context_length >= SCORE_LENGTH
    return f"use --context {SCORE_LENGTH} or more" if is_enough else other_targets("litert", checkpoint.spec.model_type)


def _proven_texts(checkpoint: Checkpoint) -> tuple[PackagedTokenizer, PackagedTemplate]:
    from converters.template import package_template
    from converters.tokenizer import choose_tokenizer, special_tokens, token_texts

    files = checkpoint.tokenizer
    tokenizer = choose_tokenizer(files)
    stop_texts = token_texts(files, checkpoint.spec.eos_token_ids)
    return tokenizer, package_template(checkpoint.chat_template, special_tokens=special_tokens(files), stop_texts=stop_texts)


def _check_recipe(checkpoint: Checkpoint, recipe: Recipe) -> None:
    from converters.targets import litert_plan
    from converters.targets.litert_quantize import quantizer_recipe, refusal

    if litert_plan.is_planned(recipe):
        why = litert_plan.check(checkpoint, recipe)
    else:
        why = next((f"[rules.{kind}]: {text}" for kind, rule in recipe.rules.items() if (text := refusal(rule))), "")
        try:
            quantizer_recipe({str(kind): rule for kind, rule in recipe.rules.items()})
        except ValueError as error:
            why = why or str(error)
    if why:
        raise UsageError(f"recipe {recipe.name} cannot be written for LiteRT", why=why, fix="use int8 or int4-g32, or change that rule")


def _as_planned(checkpoint: Checkpoint, model: Path, recipe: Recipe) -> dict[str, Any]:
    """What the manifest says of a recipe that was carried out matrix by matrix."""
    from converters.targets import litert_plan

    place = model.with_name(PLANNED_FACTS_NAME)
    if not place.is_file():
        return {}
    facts: dict[str, Any] = json.loads(place.read_bytes())
    return facts | ({"kept": litert_plan.kept(checkpoint, recipe)} if litert_plan.is_planned(recipe) else {})


def _write_planned(checkpoint: Checkpoint, lowered: Path, recipe: Recipe, workdir: Path, workshop: Workshop) -> Path:
    """Carry out a recipe matrix by matrix. The plan with its codes is scratch, not part of the result."""
    from converters.targets.litert_calibration import calibrated
    from converters.targets.litert_plan import scales_channels, write_plan

    out = workdir / "model.tflite"
    is_calibrated = recipe.is_calibrated or scales_channels(recipe, checkpoint.spec.model_type)
    found = calibrated(checkpoint, recipe, workshop) if is_calibrated else None
    with tempfile.TemporaryDirectory(dir=workdir, prefix="plan-") as scratch:
        write_plan(checkpoint, recipe, Path(scratch), found)
        arguments = {"model": str(lowered), "plan": scratch, "out": str(out)}
        run_in_child("converters.targets.litert_inject:inject", arguments, what=f"write {recipe.name}")
    facts: dict[str, Any] = {}
    if found is not None:
        facts = {"calibration_tokens": found.n_tokens, "scaled_channel_sets": len(found.scales), "promoted_to_int8": list(found.promoted)}
    (workdir / PLANNED_FACTS_NAME).write_text(json.dumps(facts), encoding="utf-8")
    return out


TARGET = LiteRtTarget()
