"""The smallest honest conversion: a random checkpoint, a target that really quantizes it, a verifier that really measures.

The "model" is a bigram: logits of the next token are embedding[token] @ embedding.T, so a file's weights decide every figure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from converters.checkpoint import Checkpoint, QuantizationInfo, TokenizerFiles
from converters.parts import Parts
from converters.recipe import Recipe
from converters.resources import FreeMemory
from converters.rule import Granularity, Rule
from converters.spec import ModelSpec, NormSpec, RopeSpec
from converters.targets.base import Assembled, ConvertOptions, Estimate, Workshop
from toolkit.errors import UsageError
from toolkit.manifest import Fidelity, LicenseRecord, SourceRecord

EMBEDDING = "model.embed_tokens.weight"


def small_spec() -> ModelSpec:
    return ModelSpec(
        model_type="llama",
        architecture="LlamaForCausalLM",
        n_layers=1,
        hidden_size=64,
        intermediate_size=64,
        n_heads=2,
        n_kv_heads=2,
        head_dim=32,
        vocab_size=96,
        max_context_length=4096,
        layer_types=("full",),
        rope={"full": RopeSpec(10000.0)},
        norm=NormSpec(1e-5),
        activation="silu",
        tie_embeddings=True,
        eos_token_ids=(2,),
    )


class RandomTensors:
    """A TensorSource of seeded normal weights."""

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        from converters.architectures import family_of

        self._shapes, self._seed = family_of(spec.model_type).tensor_shapes(spec), seed

    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def load(self, name: str) -> np.ndarray:
        seed = [self._seed, *name.encode()]
        return (0.3 * np.random.default_rng(seed).standard_normal(self._shapes[name])).astype(np.float32)

    def blocks(self, name: str) -> Iterator[np.ndarray]:
        yield self.load(name)

    def stored_kind(self, name: str) -> str | None:
        return None

    def stored(self, name: str) -> None:
        return None


def small_checkpoint(*, seed: int = 1, name: str = "small") -> Checkpoint:
    return Checkpoint(
        name=name,
        spec=small_spec(),
        source=SourceRecord("small", None, {}),
        license=LicenseRecord("Apache-2.0"),
        tensors=RandomTensors(small_spec(), seed),
        tokenizer=TokenizerFiles("bpe-byte-level", b"{}", None, False),
        chat_template=None,
        quantization=QuantizationInfo("F32", 32.0),
        content_hash=hashlib.sha256(str(seed).encode()).hexdigest(),
    )


def stored(weight: np.ndarray, rule: Rule | None) -> dict[str, np.ndarray]:
    """The arrays a rule leaves of a weight: float, or codes and scales. 4-bit codes are packed two a byte."""
    if rule is None or rule.is_float:
        return {"weight": weight.astype(np.float16 if rule and rule.bits == 16 else np.float32)}
    qmax = 2 ** (rule.bits - 1) - 1
    groups = weight.reshape(weight.shape[0], -1, rule.group_size or weight.shape[1])
    absmax = np.abs(groups).max(axis=-1, keepdims=True)
    scales = np.where(absmax > 0, absmax / qmax, 1).astype(np.float16 if rule.granularity is Granularity.BLOCKWISE else np.float32)
    codes = np.clip(np.rint(groups / scales), -qmax, qmax).astype(np.int8).reshape(weight.shape)
    if rule.bits == 4:
        nibbles = (codes + 8).astype(np.uint8)
        codes = nibbles[:, ::2] | nibbles[:, 1::2] << 4
    return {"codes": codes, "scales": scales}


def restored(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    if "weight" in arrays:
        return arrays["weight"].astype(np.float32)
    codes, scales = arrays["codes"], arrays["scales"].astype(np.float32)
    if codes.dtype == np.uint8:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[0], -1).astype(np.int8) - 8
    groups = codes.astype(np.float32).reshape(codes.shape[0], scales.shape[1], -1)
    return (groups * scales).reshape(codes.shape)


@dataclass
class SmallTarget:
    """Writes one .npz of float, then of quantized, tensors. `calls` counts the stages; a test may break any of them."""

    name: str = "small"
    revision: int = 1
    reads_hf_directory: bool = True
    version: str = "1"
    calls: list[str] = field(default_factory=list)
    fail_on: dict[str, Exception] = field(default_factory=dict)
    before: Callable[[str], None] = lambda stage: None
    carries_out: Callable[[Recipe], Recipe] = lambda recipe: recipe
    peak_memory_bytes: int = 1000
    lean_peak_memory_bytes: int = 500

    def _enter(self, stage: str) -> None:
        self.calls.append(stage)
        self.before(stage)
        if stage in self.fail_on:
            raise self.fail_on[stage]

    def tools(self) -> Mapping[str, str]:
        return {"numpy": np.__version__, "small": self.version}

    def check(self, checkpoint: Checkpoint, recipes: Sequence[Recipe], options: ConvertOptions) -> None:
        self._enter("check")
        for recipe in recipes:
            if recipe.name == "int8-hadamard":
                raise UsageError("the small target cannot rotate", why="recipe int8-hadamard", fix="use int8")

    def estimate(self, checkpoint: Checkpoint, recipes: Sequence[Recipe], options: ConvertOptions) -> Estimate:
        peak = self.lean_peak_memory_bytes if options.is_lean else self.peak_memory_bytes
        return Estimate(4 * checkpoint.spec.n_parameters, peak * options.context_length // 2048, warm_peak_memory_bytes=100)

    def promise(self, checkpoint: Checkpoint, recipe: Recipe) -> float:
        return recipe.promised_bits_per_weight(checkpoint.tensor_shapes(), is_tied=checkpoint.spec.tie_embeddings)

    def lower(self, checkpoint: Checkpoint, options: ConvertOptions, workdir: Path, workshop: Workshop) -> Path:
        self._enter("lower-lean" if options.is_lean else "lower")
        assert not any(workdir.iterdir())
        if self.reads_hf_directory:
            assert (workshop.hf_dir() / "config.json").is_file()
        with (workdir / "float.npz").open("wb") as file:
            np.savez(file, **{name: checkpoint.tensors.load(name) for name in checkpoint.tensors.names()})
        return workdir / "float.npz"

    def quantize(self, checkpoint: Checkpoint, lowered: Path, recipe: Recipe, workdir: Path, workshop: Workshop) -> Path:
        self._enter(f"quantize {recipe.name}")
        assert not any(workdir.iterdir())
        rules = self.carries_out(recipe)
        with np.load(lowered) as tensors, (workdir / "model.npz").open("wb") as file:
            parts = {name: stored(tensors[name], rules.rule_for(name, tensors[name].shape)) for name in tensors.files}
            np.savez(file, **{f"{name}:{part}": array for name, arrays in parts.items() for part, array in arrays.items()})
        return workdir / "model.npz"

    def assemble(self, checkpoint: Checkpoint, model: Path, recipe: Recipe, options: ConvertOptions, bundle_dir: Path) -> Assembled:
        self._enter(f"assemble {recipe.name}")
        assert not any(bundle_dir.iterdir())
        (bundle_dir / "model.npz").write_bytes(model.read_bytes())
        (bundle_dir / "extra").mkdir()
        (bundle_dir / "extra" / "spec.json").write_text(json.dumps(checkpoint.spec.as_dict()))
        with np.load(model) as arrays:
            n_bytes = sum(arrays[name].nbytes for name in arrays.files)
        bits = 8 * n_bytes / checkpoint.spec.n_parameters
        return Assembled("model.npz", {"kind": "huggingface", "verified_texts": 0}, False, None, bits, {"weights_bytes": n_bytes}, (2,))

    def extract_model(self, entry: Path, workdir: Path) -> Path:
        return entry

    def open_scorer(self, model: Path) -> SmallScorer:
        with np.load(model) as arrays:
            parts = {part: arrays[f"{EMBEDDING}:{part}"] for part in ("weight", "codes", "scales") if f"{EMBEDDING}:{part}" in arrays}
        return SmallScorer(restored(parts))


@dataclass
class SmallScorer:
    """The bigram model of one table, (vocab_size, hidden_size) float32."""

    table: np.ndarray

    def score(self, token_ids: Sequence[int]) -> Iterator[np.ndarray]:
        yield self.table[list(token_ids)] @ self.table.T

    def count_greedy_equal(self, prompt_ids: Sequence[int], expected_ids: Sequence[int]) -> int:
        previous = [prompt_ids[-1], *expected_ids]
        wrong = [n for n, wanted in enumerate(expected_ids) if int((self.table[previous[n]] @ self.table.T).argmax()) != wanted]
        return wrong[0] if wrong else len(expected_ids)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@dataclass
class SmallVerifier:
    """Measures a small model's next-token distributions against those of the float checkpoint directory."""

    calls: list[str] = field(default_factory=list)
    fail_on: dict[str, Exception] = field(default_factory=dict)
    distort: Callable[[Fidelity], Fidelity] = lambda fidelity: fidelity

    def reference(self, checkpoint: Checkpoint, hf_dir: Callable[[], Path], cache: Path) -> Any:
        from safetensors.numpy import load_file

        self.calls.append("reference")
        if "reference" in self.fail_on:
            raise self.fail_on["reference"]
        table = load_file(hf_dir() / "model.safetensors")[EMBEDDING]
        tokens = np.random.default_rng(5).integers(0, len(table), 200)
        greedy = [int(tokens[0])]
        while len(greedy) < 65:
            greedy.append(int((table[greedy[-1]] @ table.T).argmax()))
        return tokens, table[tokens] @ table.T, greedy

    def measure(self, target: Any, model_path: Path, reference: Any, gates: Mapping[str, float]) -> Fidelity:
        self.calls.append("measure")
        if "measure" in self.fail_on:
            raise self.fail_on["measure"]
        tokens, wanted, greedy = reference
        scorer = target.open_scorer(model_path)
        [actual] = scorer.score(tokens)
        p, q = log_softmax(wanted), log_softmax(actual)
        divergence = (np.exp(p) * (p - q)).sum(axis=-1)
        nll = {name: -logs[np.arange(len(tokens) - 1), tokens[1:]].mean() for name, logs in (("p", p), ("q", q))}
        figures = Fidelity(
            n_tokens=len(tokens),
            kl_mean=float(divergence.mean()),
            kl_p99=float(np.quantile(divergence, 0.99)),
            top1_agreement=float((actual.argmax(-1) == wanted.argmax(-1)).mean()),
            perplexity=float(np.exp(nll["q"])),
            reference_perplexity=float(np.exp(nll["p"])),
            max_abs_logit_error=float(np.abs(actual - wanted).max()),
            greedy_tokens_equal=scorer.count_greedy_equal(greedy[:1], greedy[1:]),
            greedy_tokens_compared=64,
            verdict="reported",
        )
        return self.distort(figures)


def small_parts(cache: Path, *targets: SmallTarget, verifier: SmallVerifier | None = None, checkpoint: Checkpoint | None = None) -> Parts:
    """Parts for `convert` whose every room is small; free memory is what a test says (1 GiB)."""
    by_name = {target.name: target for target in (targets or (SmallTarget(),))}
    measured_by = verifier or SmallVerifier()
    return Parts(
        read_checkpoint=lambda source, name, accept_license: checkpoint or small_checkpoint(),
        load_target=lambda name: by_name[name],
        load_verifier=lambda: measured_by,
        work_root=lambda: cache,
        reference_bytes=lambda checkpoint: 0,
        free_memory=lambda: FreeMemory(2**30, "free memory"),
        hard_limit=lambda: None,
    )
