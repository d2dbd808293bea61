"""What a target is: the one contract between the pipeline and each native format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from converters.progress import Progress, Silent

if TYPE_CHECKING:
    import numpy as np

    from converters.checkpoint import Checkpoint
    from converters.recipe import Recipe
    from converters.stages import Stage


@dataclass(frozen=True)
class ConvertOptions:
    """What a conversion was asked for, beyond source, targets and recipes.

    Args:
        context_length: Tokens (prompt and answer) the bundle must be able to hold.
        prefill_lengths: Prompt chunk lengths the graph is lowered for, shortest first.
        is_lean: Take the path with the smaller peak memory, even if it is slower. The bytes written must not
            depend on it, so it is no part of a cache key.
        is_verified: Whether the bundle is measured before it is published. A target may leave out, and must then not claim,
            what it proves through a runtime; the native files must not depend on it either.
    """

    context_length: int = 2048
    prefill_lengths: tuple[int, ...] = (16, 128)
    is_lean: bool = False
    is_verified: bool = True

    def key(self) -> dict[str, Any]:
        """The options that change what is written; hashed with the checkpoint into the name of a cached stage."""
        return {name: value for name, value in asdict(self).items() if name not in ("is_lean", "is_verified")}


@dataclass(frozen=True)
class Estimate:
    """What a conversion is going to need, worked out from the checkpoint's header before any work.

    Args:
        disk_bytes: Scratch in the work folder at its fullest: what `lower` and one `quantize` leave and hold, without
            the Hugging Face directory and without the finished bundles (the pipeline adds both).
        peak_memory_bytes: Peak RSS over all stages and child processes alive at the same time.
        warm_peak_memory_bytes: The same when `lower` is already in the cache; None means as much as cold.
        verify_disk_bytes: What scorers write to read bundles back, until they have measured them.
    """

    disk_bytes: int
    peak_memory_bytes: int
    warm_peak_memory_bytes: int | None = None
    verify_disk_bytes: int = 0


@dataclass(frozen=True)
class Assembled:
    """What `assemble` put into a bundle folder, as the manifest will state it.

    Args:
        entry: The file an engine opens, relative to the bundle folder, with forward slashes.
        tokenizer: {"kind": "sentencepiece" | "huggingface", "verified_texts": n, ...}.
        chat: Whether the bundle has a chat template that was proven against the checkpoint's.
        chat_template: The template as the target's runtime gets it; None for a base model.
        bits_per_weight: Measured on the written file: bits of all weight buffers (codes, scales, zero points)
            over the checkpoint's parameters, a tied table counted once. Never computed from the recipe.
        memory: Parts of the memory model, in bytes.
        stop_token_ids: Every token that ends an answer.
        as_written: What this target made of the recipe, e.g. {"linear": "int4 symmetric, fp16 scales"}.
    """

    entry: str
    tokenizer: dict[str, Any]
    chat: bool
    chat_template: str | None
    bits_per_weight: float
    memory: dict[str, Any]
    stop_token_ids: tuple[int, ...]
    as_written: dict[str, Any] = field(default_factory=dict)


def _not_lent(*wanted: Any) -> Path:
    raise LookupError("the pipeline lends this only to targets at work")


@dataclass(frozen=True)
class Workshop:
    """What the pipeline lends a target at work.

    Args:
        progress: Where its steps are shown.
        hf_dir: Gives the checkpoint as a float32 Hugging Face directory, written on the first call, for a target whose
            `reads_hf_directory` is true.
        run_stage: Gives the result of a stage of the target's own: built once, kept for the next recipe, resumed after an
            interrupt and waited for by other conversions, like the pipeline's stages.
    """

    progress: Progress = field(default_factory=Silent)
    hf_dir: Callable[[], Path] = _not_lent
    run_stage: Callable[[Stage], Path] = _not_lent


class Scorer(Protocol):
    """A native model, opened to be compared with its checkpoint."""

    def score(self, token_ids: Sequence[int]) -> Iterator[np.ndarray]:
        """Logits after each token of a window, from an empty cache: blocks of (n_positions, vocab_size) float32, in order."""

    def count_greedy_equal(self, prompt_ids: Sequence[int], expected_ids: Sequence[int]) -> int:
        """Tokens that greedy generation from `prompt_ids`, one decode step each, shares with `expected_ids` before the first other."""


class Target(Protocol):
    """One native format. A module of this package exposes an instance as `TARGET`; heavy imports stay inside methods.

    Every folder a method gets is empty, private to it and on disk; a method that fails or is killed may leave anything
    there, the pipeline removes it. Paths that a method returns lie inside the folder it was given.
    """

    @property
    def name(self) -> str:
        """The word of `--to`, of the manifest and of the bundle's name."""

    @property
    def revision(self) -> int:
        """Raised when the same recipe is carried out differently: what was quantized or published before counts as something else."""

    @property
    def reads_hf_directory(self) -> bool:
        """Whether `lower` asks for the float32 Hugging Face directory; one that streams `checkpoint.tensors` does not."""

    def tools(self) -> Mapping[str, str]:
        """Distribution -> version of what writes the files; part of every cache key. Imports nothing heavy."""

    def check(self, checkpoint: Checkpoint, recipes: Sequence[Recipe], options: ConvertOptions) -> None:
        """Refuse, before any work, what this target cannot write or would write wrongly.

        Raises:
            UnsupportedModelError: The architecture cannot be lowered to this target.
            UsageError: A recipe or option this target would ignore or break.
            BackendUnavailableError: A library this target needs is not installed.
        """

    def estimate(self, checkpoint: Checkpoint, recipes: Sequence[Recipe], options: ConvertOptions) -> Estimate:
        """Arithmetic on the header, no weights read, for all these recipes; honours `options.is_lean` and `options.is_verified`.

        The lean path does one thing at a time. Else two recipes are in work at once, and the checkpoint answers the
        verification texts meanwhile.
        """

    def promise(self, checkpoint: Checkpoint, recipe: Recipe) -> float:
        """Bits per parameter a bundle of this recipe must come to within 10 %, scales and zero points as this format stores them.

        Raises:
            UsageError: The recipe does not fit a tensor; names the tensor and the recipe's rule.
        """

    def lower(self, checkpoint: Checkpoint, options: ConvertOptions, workdir: Path, workshop: Workshop) -> Path:
        """Write what every recipe starts from, once: returns a file or folder inside `workdir`, cached by the pipeline.

        A target that quantizes straight from `checkpoint.tensors` returns a small file of facts.
        """

    def quantize(self, checkpoint: Checkpoint, lowered: Path, recipe: Recipe, workdir: Path, workshop: Workshop) -> Path:
        """Write the native weights of one recipe: returns a file or folder inside `workdir`. `lowered` is read only."""

    def assemble(self, checkpoint: Checkpoint, model: Path, recipe: Recipe, options: ConvertOptions, bundle_dir: Path) -> Assembled:
        """Write the native files of a bundle into `bundle_dir`. `model` (from `quantize`) is read only."""

    def extract_model(self, entry: Path, workdir: Path) -> Path:
        """The native model inside a published bundle's entry, as `open_scorer` takes it; the bundle's hashes were checked."""

    def open_scorer(self, model: Path) -> Scorer:
        """Open a native model (from `quantize`) in this process, through the target's own runtime, to read its logits."""
