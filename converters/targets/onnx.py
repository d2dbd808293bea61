"""The ONNX target: a folder onnxruntime-genai opens. Its builder makes the graph, the weights are streamed in by this project."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from converters.child import run_in_child
from converters.rule import Rule
from converters.targets import other_targets
from converters.targets.base import Assembled, ConvertOptions, Estimate, Scorer, Workshop
from converters.targets.libraries import installed_versions
from converters.targets.link_or_copy import link_or_copy
from converters.targets.onnx_build import BUILDERS
from converters.targets.onnx_config import CONFIG_NAME, genai_config
from converters.targets.proven_once import ProvenOnce
from converters.targets.reference_memory import reference_peak_bytes
from toolkit.errors import UnsupportedModelError, UsageError

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint
    from converters.recipe import Recipe
    from converters.targets.onnx_proof import ProvenText

FACTS_NAME = "lowered.json"
MODEL_FILES = ("model.onnx", "model.onnx.data", CONFIG_NAME)
TOOLS = ("numpy", "onnx", "onnx-ir", "onnxruntime", "onnxruntime-genai", "torch", "transformers")
MODEL_TYPES = tuple(BUILDERS)
SCORE_LENGTH = 512  # a verification window; the graph holds it even if a bundle's context is shorter
HEAD_DIM_MULTIPLE = 8
_IN_ONE_TENSOR = "or give that tensor a rule of its own with [[overrides]]"
# Peak RSS of single processes (ru_maxrss): building 454 and 475 MiB for SmolLM2 and Gemma 3 270M, writing 138 to 330 MiB, measuring
# the float model 1.5 and 2.9 GB, since onnxruntime packs weights beside those it read. The whole process tree was not measured.
BASE_BYTES = 350 * 2**20
BUILD_BYTES = 500 * 2**20
VERIFY_BYTES_PER_WEIGHT_BYTE = 2.7


class OnnxTarget:
    """Checkpoint -> float graph without weights (once) -> model.onnx and its data (per recipe) -> bundle."""

    name = "onnx"
    revision = 1
    reads_hf_directory = False

    def __init__(self) -> None:
        self._proven = ProvenOnce["ProvenText"]()

    def tools(self) -> Mapping[str, str]:
        """Versions of what writes the files."""
        return installed_versions(TOOLS, target=self.name, extra="convert,onnx")

    def check(self, checkpoint: Checkpoint, recipes: Sequence[Recipe], options: ConvertOptions) -> None:
        """Refuse what the builder misreads, what onnxruntime's CPU kernels cannot run, and what its tokenizer reads differently.

        Raises:
            UnsupportedModelError: The architecture, or a feature of it, is not there.
            UsageError: A recipe holds a rule ONNX cannot carry out, or that does not fit a tensor.
            FormatError: The tokenizer or the template is damaged.
            FidelityError: The runtime tokenizes, or renders the chat template, differently.
            BackendUnavailableError: A library is missing.
        """
        self.tools()
        if why := _unsupported(checkpoint):
            fix = other_targets(self.name, checkpoint.spec.model_type)
            raise UnsupportedModelError(f"{checkpoint.name} cannot be converted to ONNX", why=why, fix=fix)
        for recipe in recipes:
            _check_recipe(recipe)
            self.promise(checkpoint, recipe)
        self._text(checkpoint, options.context_length)

    def estimate(self, checkpoint: Checkpoint, recipes: Sequence[Recipe], options: ConvertOptions) -> Estimate:
        """Arithmetic on the parameter count; the factors are measured, see `VERIFY_BYTES_PER_WEIGHT_BYTE`."""
        spec = checkpoint.spec
        weights = 4 * spec.n_parameters
        rope = 16 * _n_positions(checkpoint, options.context_length) * spec.head_dim
        scorer, reference = int(VERIFY_BYTES_PER_WEIGHT_BYTE * weights), reference_peak_bytes(spec)
        measure = (max(scorer, reference) if options.is_lean else scorer + max(scorer, reference)) if options.is_verified else 0
        peak = BASE_BYTES + rope + max(BUILD_BYTES, measure)
        return Estimate(disk_bytes=2 * rope + 2 * 2**20, peak_memory_bytes=peak)

    def promise(self, checkpoint: Checkpoint, recipe: Recipe) -> float:
        """Codes of 4 or 8 bits, a float16 scale for a group, affine zero points as wide as a code; kept blocks as `stored_bits` says."""
        from converters.targets.onnx_codes import stored_bits

        def bits_of(rule: Rule, name: str, shape: Sequence[int]) -> int:
            kind = checkpoint.tensors.stored_kind(name) if rule.is_keep else None
            try:
                return stored_bits(rule, kind, (shape[0], shape[1]))
            except ValueError as error:
                what, why = f"recipe {recipe.name} does not fit {name} in ONNX", f"{error} (shape {tuple(shape)})"
                raise UsageError(what, why=why, fix=f"use fp16 or fp32, which fit any tensor, {_IN_ONE_TENSOR}") from error

        return recipe.promised_bits_per_weight(checkpoint.tensor_shapes(), is_tied=checkpoint.spec.tie_embeddings, bits_of=bits_of)

    def lower(self, checkpoint: Checkpoint, options: ConvertOptions, workdir: Path, workshop: Workshop) -> Path:
        """Write the float graph without weights, and prove that it is the checkpoint's, once for all recipes."""
        from converters.architectures import family_of
        from converters.targets.onnx_check import require_faithful
        from converters.targets.onnx_folder import read_graph
        from converters.targets.onnx_names import require_all_tensors

        spec = checkpoint.spec
        arguments = {
            "config": family_of(spec.model_type).config_from_spec(spec) | {"dtype": "float32"},
            "n_positions": _n_positions(checkpoint, options.context_length),
            "is_tied": spec.tie_embeddings,
            "out_dir": str(workdir),
        }
        done = run_in_child("converters.targets.onnx_build:build_graph", arguments, what=f"build the ONNX graph of {checkpoint.name}")
        graph = read_graph(Path(done["graph"]))
        require_all_tensors(graph.graph, spec, checkpoint.tensor_shapes())
        require_faithful(graph.graph, spec)
        (workdir / FACTS_NAME).write_text(json.dumps({"context_length": options.context_length}), encoding="utf-8")
        return Path(done["graph"])

    def quantize(self, checkpoint: Checkpoint, lowered: Path, recipe: Recipe, workdir: Path, workshop: Workshop) -> Path:
        """Write a folder with the model of one recipe: graph, data and genai_config.json."""
        import numpy as np

        from converters.targets.onnx_build import ROPE_NAME
        from converters.targets.onnx_folder import read_graph
        from converters.targets.onnx_graph import ModelWriter

        facts = json.loads(lowered.with_name(FACTS_NAME).read_text(encoding="utf-8"))
        out = workdir / "model"
        out.mkdir()
        with np.load(lowered.with_name(ROPE_NAME)) as tables:
            writer = ModelWriter(read_graph(lowered), checkpoint.spec, checkpoint.tensors, recipe.rule_for, dict(tables))
        try:
            with workshop.progress.stage("tensors", total=len(checkpoint.tensors.names())) as step:
                writer.write(out, lambda: step.advance())
        except ValueError as error:
            raise UsageError(
                f"recipe {recipe.name} cannot be written for ONNX", why=str(error), fix=f"use fp32, {_IN_ONE_TENSOR}"
            ) from error
        config = genai_config(checkpoint.spec, facts["context_length"])
        (out / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        return out

    def assemble(self, checkpoint: Checkpoint, model: Path, recipe: Recipe, options: ConvertOptions, bundle_dir: Path) -> Assembled:
        """Take over the model, write the proven tokenizer and template beside it, and measure what the files hold."""
        from converters.targets.onnx_folder import stored_weights

        spec, text = checkpoint.spec, self._text(checkpoint, options.context_length)
        for name in MODEL_FILES:
            link_or_copy(model / name, bundle_dir / name)
        for name, content in text.files().items():
            (bundle_dir / name).write_bytes(content)
        stored = stored_weights(bundle_dir / MODEL_FILES[0])
        return Assembled(
            entry=CONFIG_NAME,
            tokenizer=text.as_manifest(add_bos=checkpoint.tokenizer.add_bos),
            chat=text.chat_template is not None,
            chat_template=text.chat_template,
            bits_per_weight=stored.bits / spec.n_parameters,
            memory={"weights_bytes": stored.bits // 8, "kv_cache_bytes_per_token": spec.kv_bytes_per_token(4)},
            stop_token_ids=spec.eos_token_ids,
            as_written={
                "rules": {str(kind): _as_written(rule) for kind, rule in recipe.rules.items()},
                "weight_bits_by_type": stored.bits_by_type,
                "rope_bytes": stored.rope_bytes,
                "kv_cache": "float32, context_length tokens from the start",
                "chat_template": {"verified_conversations": text.n_conversations},
            },
        )

    def _text(self, checkpoint: Checkpoint, context_length: int) -> ProvenText:
        """Tokenizer and template. The runtime's config holds the context length, so a proof is of one of them."""
        from converters.targets.onnx_proof import prove

        key = (checkpoint.content_hash, context_length)
        return self._proven.get(key, lambda: prove(checkpoint, genai_config(checkpoint.spec, context_length)))

    def extract_model(self, entry: Path, workdir: Path) -> Path:
        """The bundle's own folder is what the runtime opens."""
        return entry.parent

    def open_scorer(self, model: Path) -> Scorer:
        """The folder in onnxruntime-genai."""
        from converters.targets.onnx_run import OnnxModel

        return OnnxModel(model)


def _unsupported(checkpoint: Checkpoint) -> str:
    """Why a checkpoint cannot be had; empty if it can."""
    from converters.targets.onnx_check import unsupported_activation

    spec = checkpoint.spec
    if spec.model_type not in MODEL_TYPES:
        return f"its model_type is {spec.model_type}; built and checked are {', '.join(MODEL_TYPES)}"
    if spec.head_dim % HEAD_DIM_MULTIPLE:
        return f"head_dim is {spec.head_dim}; GroupQueryAttention rotates heads whose width is a multiple of {HEAD_DIM_MULTIPLE}"
    if not spec.eos_token_ids:
        return "it names no stop token, so no answer would ever end"
    return unsupported_activation(spec)


def _n_positions(checkpoint: Checkpoint, context_length: int) -> int:
    return max(context_length, min(SCORE_LENGTH, checkpoint.spec.max_context_length))


def _check_recipe(recipe: Recipe) -> None:
    from converters.targets.onnx_codes import refusal

    rules = {f"rules.{kind}": rule for kind, rule in recipe.rules.items()}
    rules |= {f"overrides.{index}": override.rule for index, override in enumerate(recipe.overrides)}
    why = next((f"[{where}]: {text}" for where, rule in rules.items() if (text := refusal(rule))), "")
    if recipe.promotion is not None:
        why = why or "[promotion]: choosing the sensitive linears by calibration is not there for ONNX"
    if why:
        raise UsageError(
            f"recipe {recipe.name} cannot be written for ONNX",
            why=why,
            fix="use fp32, fp16, int8, int4-g32, or keep for a GGUF source, or change that rule",
        )


def _as_written(rule: Rule) -> str:
    from converters.targets.onnx_codes import group_size_of

    if rule.is_keep:
        return "the source's own codes, scales and offsets; activations int8, a scale for each 32, made on the fly"
    if rule.is_float:
        return f"float{rule.bits}, computed in float32"
    kind = "the largest magnitude on code 0" if rule.is_symmetric else "affine, integer zero points"
    groups = f"a float16 scale for each {group_size_of(rule)} weights of a row"
    activations = f"activations {'float32' if rule.activations == 'float32' else 'int8, made on the fly in the same groups'}"
    return f"{rule.bits} bits, {kind}, {groups}; {activations}"


TARGET = OnnxTarget()
