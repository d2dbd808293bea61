"""The MLX target: a folder `mlx_lm` opens, quantized by our own numpy while the checkpoint is read. Writing it needs no MLX."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from converters.targets.base import Assembled, ConvertOptions, Estimate, Scorer, Workshop
from converters.targets.libraries import installed_versions
from converters.targets.link_or_copy import link_or_copy
from converters.targets.mlx_gemmas import MODEL_TYPES as LATE_GEMMAS
from converters.targets.mlx_support import FAMILIES
from converters.targets.proven_once import ProvenOnce
from converters.targets.reference_memory import reference_peak_bytes
from toolkit.errors import UnsupportedModelError

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint
    from converters.recipe import Recipe
    from converters.targets.mlx_text import TextProof

FACTS_NAME = "written.json"
TOOLS = ("numpy",)
# Writing: what benchmarks/mlx_conversion.py shows for the interpreter and a block, rounded up, and the largest tensor once and a third.
WRITE_BASE_BYTES = 300 * 2**20
WRITE_TENSORS = 1.3
# Measuring: the runtime, float32 weights for the matmuls beside the file's own, logits (1.05 * 10^9 bytes for SmolLM2, rounded up).
VERIFY_BASE_BYTES = 700 * 2**20
VERIFY_BYTES_PER_WEIGHT_BYTE = 1.5

MODEL_TYPES = tuple(sorted((*FAMILIES, *LATE_GEMMAS)))


class MlxTarget:
    """Checkpoint -> config.json (once) -> model folder (per recipe) -> bundle with tokenizer and template."""

    name = "mlx"
    revision = 1
    reads_hf_directory = False

    def __init__(self) -> None:
        self._proven = ProvenOnce["TextProof"]()

    def tools(self) -> Mapping[str, str]:
        """Versions of what writes the files; MLX itself is not among them."""
        return installed_versions(TOOLS, target=self.name)

    def check(self, checkpoint: Checkpoint, recipes: Sequence[Recipe], options: ConvertOptions) -> None:
        """Refuse what mlx_lm would compute otherwise, and rules MLX cannot carry out.

        Raises:
            UnsupportedModelError: mlx_lm has no such architecture, or passes over something the checkpoint needs.
            UsageError: A recipe holds a rule MLX has no counterpart for, or one that does not fit a tensor.
            FormatError: Tokenizer or template are damaged, or there is no tokenizer.json.
            FidelityError: The bundle is to be verified, and mlx_lm tokenizes, renders or stops differently.
            BackendUnavailableError: The bundle is to be verified, and MLX is not installed.
        """
        from converters.targets import mlx_gemmas
        from converters.targets.mlx_files import text_files
        from converters.targets.mlx_run import require_mlx
        from converters.targets.mlx_storage import plan_storage
        from converters.targets.mlx_support import refusal

        is_late_gemma = checkpoint.spec.model_type in mlx_gemmas.MODEL_TYPES
        refused = mlx_gemmas.refusal(checkpoint) if is_late_gemma else refusal(checkpoint.spec, options.context_length)
        if refused is not None:
            raise UnsupportedModelError(f"{checkpoint.name} cannot be converted to MLX", why=refused.why, fix=refused.fix)
        for recipe in recipes:
            plan_storage(mlx_gemmas.as_mlx_lm_has_it(checkpoint), recipe)
        text_files(checkpoint)
        if options.is_verified:
            require_mlx("an MLX bundle cannot be verified here", instead=", or write it with --no-verify, which needs no MLX")
            self._proof(checkpoint)

    def estimate(self, checkpoint: Checkpoint, recipes: Sequence[Recipe], options: ConvertOptions) -> Estimate:
        """Arithmetic on shapes. Written in this process, measured in children: the bundle, and the checkpoint beside it."""
        largest = 4 * max(math.prod(shape) for shape in checkpoint.tensor_shapes().values())
        peak = WRITE_BASE_BYTES + int(WRITE_TENSORS * largest)
        if options.is_verified:
            weights = 4 * checkpoint.spec.n_parameters
            scorer = VERIFY_BASE_BYTES + int(VERIFY_BYTES_PER_WEIGHT_BYTE * weights)
            reference = reference_peak_bytes(checkpoint.spec)
            peak += max(reference, scorer) if options.is_lean else max(reference + WRITE_BASE_BYTES, 2 * scorer)
        return Estimate(disk_bytes=2**20, peak_memory_bytes=peak)

    def promise(self, checkpoint: Checkpoint, recipe: Recipe) -> float:
        """Codes, and a scale and a bias for each group, in the bundle's float type; vectors in that type."""
        from converters.targets.mlx_gemmas import as_mlx_lm_has_it
        from converters.targets.mlx_storage import bits_per_weight, plan_storage

        checkpoint = as_mlx_lm_has_it(checkpoint)
        return bits_per_weight(checkpoint, plan_storage(checkpoint, recipe))

    def lower(self, checkpoint: Checkpoint, options: ConvertOptions, workdir: Path, workshop: Workshop) -> Path:
        """Nothing to lower: mlx_lm builds the graph from config.json. The spec is written as what the recipes start from."""
        place = workdir / "spec.json"
        place.write_text(json.dumps(checkpoint.spec.as_dict()), encoding="utf-8")
        return place

    def quantize(self, checkpoint: Checkpoint, lowered: Path, recipe: Recipe, workdir: Path, workshop: Workshop) -> Path:
        """Write weights and config.json of one recipe, straight from the checkpoint's tensors."""
        from converters.targets.mlx_files import CONFIG_NAME, as_json, mlx_config
        from converters.targets.mlx_gemmas import UnderOtherNames, as_mlx_lm_has_it, mlx_name
        from converters.targets.mlx_storage import float_dtype, plan_storage
        from converters.targets.mlx_weights import write_weights

        checkpoint = as_mlx_lm_has_it(checkpoint)
        kind = checkpoint.spec.model_type
        plan = plan_storage(checkpoint, recipe)
        folder = workdir / "model"
        folder.mkdir()
        with workshop.progress.stage("tensors", total=len(plan)) as step:
            named = {mlx_name(name, kind): storage for name, storage in plan.items()}
            rounding = write_weights(folder, UnderOtherNames(checkpoint.tensors, kind), named, on_tensor=lambda name: step.advance())
        config = mlx_config(checkpoint.spec, plan, float_dtype(checkpoint.spec, recipe))
        (folder / CONFIG_NAME).write_text(as_json(config), encoding="utf-8")
        (workdir / FACTS_NAME).write_text(json.dumps({"vectors": asdict(rounding)}), encoding="utf-8")
        return folder

    def assemble(self, checkpoint: Checkpoint, model: Path, recipe: Recipe, options: ConvertOptions, bundle_dir: Path) -> Assembled:
        """Put tokenizer and template beside the weights; what mlx_lm makes of them was proven by `check` if the bundle is verified."""
        from converters.targets.mlx_files import text_files
        from converters.targets.mlx_gemmas import as_mlx_lm_has_it
        from converters.targets.mlx_storage import DTYPE_BITS, describe, float_dtype, plan_storage
        from converters.targets.mlx_weights import INDEX_NAME, WEIGHTS_NAME, stored_bytes

        for path in sorted(model.iterdir()):
            link_or_copy(path, bundle_dir / path.name)
        for name, content in text_files(checkpoint).items():
            (bundle_dir / name).write_bytes(content)
        proof = self._proof(checkpoint) if options.is_verified else None
        checkpoint = as_mlx_lm_has_it(checkpoint)
        spec, plan, dtype = checkpoint.spec, plan_storage(checkpoint, recipe), float_dtype(checkpoint.spec, recipe)
        weights_bytes = stored_bytes(bundle_dir)
        facts = json.loads(model.with_name(FACTS_NAME).read_text(encoding="utf-8"))
        return Assembled(
            entry=WEIGHTS_NAME if (bundle_dir / WEIGHTS_NAME).exists() else INDEX_NAME,
            tokenizer={
                "kind": "huggingface",
                "verified_texts": proof.verified_texts if proof else 0,
                "reason": "mlx_lm reads the checkpoint's own tokenizer.json",
            },
            chat=checkpoint.chat_template is not None,
            chat_template=checkpoint.chat_template,
            bits_per_weight=8 * weights_bytes / spec.n_parameters,
            memory={"weights_bytes": weights_bytes, "kv_cache_bytes_per_token": spec.kv_bytes_per_token(DTYPE_BITS[dtype] / 8)},
            stop_token_ids=spec.eos_token_ids,
            as_written={
                **describe(checkpoint, plan),
                "activations": dtype,
                "kv_cache": dtype,
                "rounded_vector_values": facts["vectors"],
                "chat_template": {"verified_conversations": proof.verified_conversations if proof else 0},
                **({"verified_with": proof.verified_with} if proof else {}),
            },
        )

    def _proof(self, checkpoint: Checkpoint) -> TextProof:
        from converters.targets.mlx_text import prove_checkpoint

        return self._proven.get(checkpoint.content_hash, lambda: prove_checkpoint(checkpoint))

    def extract_model(self, entry: Path, workdir: Path) -> Path:
        """The bundle's own folder: weights and config.json lie in it as mlx_lm takes them."""
        return entry.parent

    def open_scorer(self, model: Path) -> Scorer:
        """The folder in mlx_lm."""
        from converters.targets.mlx_run import MlxModel

        return MlxModel(model)


TARGET = MlxTarget()
