"""The GGUF target: one `model.gguf` with weights, tokenizer and template, streamed from the checkpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from converters.rule import Rule, TensorClass
from converters.targets.base import Assembled, ConvertOptions, Estimate, Scorer, Workshop
from converters.targets.gguf_metadata import ARCHITECTURES, general_metadata, model_metadata, refuse_unsupported
from converters.targets.gguf_storage import DESCRIPTIONS, FILE_TYPES, check_recipe, storage
from converters.targets.libraries import installed_versions
from converters.targets.link_or_copy import link_or_copy
from converters.targets.proven_once import ProvenOnce
from converters.targets.reference_memory import reference_peak_bytes

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint
    from converters.recipe import Recipe
    from converters.targets.gguf_vocabulary import ProvenVocabulary

ENTRY = "model.gguf"
FACTS_NAME = "model.json"
TOOLS = ("gguf", "numpy")
KV_BYTES_PER_VALUE = 2  # llama.cpp's default cache is float16
# Peak RSS of writing: a base with numpy and the tokenizer, and the largest tensor in float32 with what quantizing it makes.
BASE_BYTES = 500 * 2**20
BYTES_PER_VALUE = 16

MODEL_TYPES = tuple(ARCHITECTURES)


class GgufTarget:
    """Checkpoint -> model.gguf, per recipe. There is nothing to lower: every recipe streams the checkpoint's tensors."""

    name = "gguf"
    revision = 1
    reads_hf_directory = False

    def __init__(self) -> None:
        self._proven = ProvenOnce["ProvenVocabulary"]()

    def tools(self) -> Mapping[str, str]:
        """Versions of what writes the file, and of llama.cpp, which measures it, if that is here."""
        from converters.targets.llama_cpp import DISTRIBUTION, installed_version

        versions = installed_versions(TOOLS, target=self.name)
        llama_cpp = installed_version()
        return versions if llama_cpp is None else {**versions, DISTRIBUTION: llama_cpp}

    def check(self, checkpoint: Checkpoint, recipes: Sequence[Recipe], options: ConvertOptions) -> None:
        """Refuse what llama.cpp would not compute as the checkpoint does, and what no GGUF type stores.

        Raises:
            UnsupportedModelError: llama.cpp assumes something else of this architecture, or does not know the tokenizer.
            UsageError: A recipe that GGUF cannot carry out, or that does not fit a tensor.
            FidelityError: llama.cpp tokenizes or renders the chat template differently.
            FormatError: Tokenizer or template are damaged.
            BackendUnavailableError: gguf-py is missing.
        """
        self.tools()
        refuse_unsupported(checkpoint)
        for recipe in recipes:
            check_recipe(recipe)
            self.promise(checkpoint, recipe)
        self._vocabulary(checkpoint)

    def estimate(self, checkpoint: Checkpoint, recipes: Sequence[Recipe], options: ConvertOptions) -> Estimate:
        """The largest tensor that is loaded whole decides memory while writing; measuring holds the weights in a child process.

        In PyTorch it holds them twice, and writes them in float32 first.
        """
        from converters.architectures.decoder import EMBEDDING, LM_HEAD
        from converters.targets.llama_cpp import is_available

        shapes = checkpoint.tensor_shapes()
        largest = max(math.prod(shape) for name, shape in shapes.items() if name not in (EMBEDDING, LM_HEAD))
        write = BASE_BYTES + BYTES_PER_VALUE * largest + 4 * 128 * checkpoint.spec.vocab_size
        if not options.is_verified:
            return Estimate(disk_bytes=2**20, peak_memory_bytes=write if options.is_lean else 2 * write)
        weights, is_native = 4 * checkpoint.spec.n_parameters, is_available()
        scorer, reference = BASE_BYTES + (weights if is_native else 2 * weights), reference_peak_bytes(checkpoint.spec)
        measure = max(scorer, reference) if options.is_lean else scorer + max(scorer, reference)
        n_read_back = 0 if is_native else 1 if options.is_lean else min(2, len(recipes))
        return Estimate(disk_bytes=2**20, peak_memory_bytes=write + measure, verify_disk_bytes=n_read_back * weights)

    def promise(self, checkpoint: Checkpoint, recipe: Recipe) -> float:
        """Bits per parameter of the planned tensors, a float16 scale (and minimum) for 32 weights."""
        from converters.targets.gguf_plan import bits_per_weight, plan_tensors

        return bits_per_weight(plan_tensors(checkpoint, recipe), checkpoint.spec.n_parameters)

    def lower(self, checkpoint: Checkpoint, options: ConvertOptions, workdir: Path, workshop: Workshop) -> Path:
        """A file of facts: weights are read when they are written."""
        facts = workdir / FACTS_NAME
        facts.write_text(json.dumps({"metadata": model_metadata(checkpoint.spec)}), encoding="utf-8")
        return facts

    def quantize(self, checkpoint: Checkpoint, lowered: Path, recipe: Recipe, workdir: Path, workshop: Workshop) -> Path:
        """Write the whole file of one recipe."""
        from converters.targets.gguf_plan import plan_tensors
        from converters.targets.gguf_write import write_gguf

        planned, vocabulary = plan_tensors(checkpoint, recipe), self._vocabulary(checkpoint)
        keys = {**json.loads(lowered.read_text(encoding="utf-8"))["metadata"], **vocabulary.metadata}
        if checkpoint.chat_template is not None:
            keys["tokenizer.chat_template"] = checkpoint.chat_template
        out = workdir / ENTRY
        with workshop.progress.stage("tensors", total=len(planned)) as step:
            write_gguf(out, general_metadata(checkpoint, _file_type(checkpoint, recipe)) | keys, planned, lambda name: step.advance())
        return out

    def assemble(self, checkpoint: Checkpoint, model: Path, recipe: Recipe, options: ConvertOptions, bundle_dir: Path) -> Assembled:
        """Take over the file and measure what it holds."""
        from converters.targets.gguf_measure import measure_file
        from converters.targets.gguf_run import runtime_name

        spec, vocabulary = checkpoint.spec, self._vocabulary(checkpoint)
        link_or_copy(model, bundle_dir / ENTRY)
        measured = measure_file(bundle_dir / ENTRY)
        return Assembled(
            entry=ENTRY,
            tokenizer=vocabulary.as_manifest(),
            chat=checkpoint.chat_template is not None,
            chat_template=checkpoint.chat_template,
            bits_per_weight=measured.weight_bits / spec.n_parameters,
            memory={"weights_bytes": measured.weight_bits // 8, "kv_cache_bytes_per_token": spec.kv_bytes_per_token(KV_BYTES_PER_VALUE)},
            stop_token_ids=spec.eos_token_ids,
            as_written={
                "weights_by_type": measured.weights_by_type,
                "rules": {str(kind): _as_written(rule) for kind, rule in recipe.rules.items()},
                "kv_cache": "float16",
                **({"verified_with": runtime_name()} if options.is_verified else {}),
                **vocabulary.as_written(),
            },
        )

    def _vocabulary(self, checkpoint: Checkpoint) -> ProvenVocabulary:
        from converters.targets.gguf_vocabulary import prove_vocabulary

        return self._proven.get(checkpoint.content_hash, lambda: prove_vocabulary(checkpoint))

    def extract_model(self, entry: Path, workdir: Path) -> Path:
        """The bundle's file is the model."""
        return entry

    def open_scorer(self, model: Path) -> Scorer:
        """The file in llama.cpp if it is installed, else its values in PyTorch; the manifest says which."""
        from converters.targets.gguf_run import open_scorer

        return open_scorer(model)


def _file_type(checkpoint: Checkpoint, recipe: Recipe) -> int:
    """What `general.file_type` says: the source's own word for kept blocks, else the type of the linears."""
    from converters.read.gguf_tensors import GgufTensorSource

    source = checkpoint.tensors
    rule = recipe.rules[TensorClass.LINEAR]
    if rule.is_keep and isinstance(source, GgufTensorSource):
        return int(source.file.metadata.get("general.file_type", 0))
    return FILE_TYPES[storage(rule).name]


def _as_written(rule: Rule) -> str:
    return "the source's own blocks, copied" if rule.is_keep else DESCRIPTIONS[storage(rule).name]


TARGET = GgufTarget()
