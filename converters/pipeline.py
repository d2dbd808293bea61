"""From a checkpoint to published bundles: read, check everything, lower once, then per recipe quantize to publish."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from converters.ahead import Ahead, side_by_side, wait_until_stopped
from converters.child import end_children
from converters.existing import same_bundle
from converters.faults import explained
from converters.freed_memory import give_back_memory
from converters.gates import SPEECH_GATES
from converters.job import REFERENCE, Job, Shared
from converters.package import OutputFolder
from converters.parts import Parts, default_parts
from converters.progress import Progress, Silent
from converters.recipe import Recipe, load_recipe
from converters.request import BundleReport, ConvertRequest, ConvertResult
from converters.resources import check_disk, choose_memory_path
from converters.stages import WorkFolder
from converters.targets import suited
from converters.targets.base import ConvertOptions, Estimate
from toolkit.bundle import SPEECH_MODEL_TYPE
from toolkit.errors import ToolkitError, UsageError
from toolkit.units import format_bytes

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint
    from converters.targets.base import Target

# Work goes on side by side only up to here: saving a minute is not worth more memory than half a laptop has.
SIDE_BY_SIDE_BYTES = 4 * 2**30
TOKENIZER_ALLOWANCE_BYTES = 40 * 2**20
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RESUMABLE = ("hf-", "calibrated-", "quantized-", "fidelity-")


def convert(
    request: ConvertRequest, progress: Progress | None = None, *, parts: Parts | None = None, recipes: Sequence[Recipe] | None = None
) -> ConvertResult:
    """Convert one source to every target x recipe asked for; `recipes`, if given, are used as they are instead of those named.

    Everything that can be refused is refused before any weight is read. After that, a recipe or target that fails does
    not stop the others: its error is in the result, and `exit_code` tells.

    Raises:
        UsageError: The request is wrong, or OUT cannot be written to.
        BudgetError: Memory or disk will not do.
        FormatError: The source is damaged, or its architecture is not supported.
        BackendUnavailableError: A library a target needs is not installed.
    """
    progress, parts = progress or Silent(), parts or default_parts()
    request.check()
    named = _load_recipes(request) if recipes is None else []
    targets = [parts.load_target(name) for name in request.targets]
    out = OutputFolder(request.out)
    try:
        with explained(f"write bundles into {request.out}", request.out):
            out.prepare()
        checkpoint = read_source(request, parts, progress)
        if checkpoint.spec.model_type == SPEECH_MODEL_TYPE:
            named = [replace(recipe, gates={**SPEECH_GATES, **recipe.gates}) for recipe in named]
        return _Conversion(request, parts, progress, out, checkpoint, targets, named if recipes is None else recipes).run()
    finally:
        out.tidy()


def _load_recipes(request: ConvertRequest) -> list[Recipe]:
    recipes = [load_recipe(name) for name in request.recipes]
    if len({recipe.name for recipe in recipes}) < len(recipes):
        raise UsageError("two recipes of --recipe have the same name", why="their bundles would too", fix="rename one, or convert twice")
    return recipes if request.max_kl is None else [recipe.with_max_kl(request.max_kl) for recipe in recipes]


def read_source(request: ConvertRequest, parts: Parts, progress: Progress) -> Checkpoint:
    """Read the source of a request, weights left where they are.

    Raises:
        ToolkitError: It cannot be read, cannot give a bundle its name, or holds less context than was asked for.
    """
    with progress.stage(f"reading {request.source}"), explained(f"read {request.source}", request.out):
        checkpoint = parts.read_checkpoint(request.source, request.name, request.accept_license)
    if not _SAFE_NAME.fullmatch(checkpoint.name):
        why = "a bundle name has 1 to 100 letters, digits, dots, dashes or underscores, and starts with a letter or digit"
        raise UsageError(f"{checkpoint.name!r} cannot be the name of a bundle", why=why, fix="rename the source")
    if checkpoint.left_out:
        parts_left_out = ", ".join(f"{part} ({n} tensors)" for part, n in sorted(checkpoint.left_out.items()))
        progress.note(f"left out: {parts_left_out}; the bundles neither see nor hear")
    longest = checkpoint.spec.max_context_length
    is_speech = checkpoint.spec.model_type == SPEECH_MODEL_TYPE  # its decoder always holds what it was trained for
    if request.context_length > longest and not is_speech:
        why = f"it was trained for {longest} tokens"
        raise UsageError(f"{checkpoint.name} cannot hold --context {request.context_length}", why=why, fix=f"use --context {longest}")
    return checkpoint


def options_of(request: ConvertRequest, checkpoint: Checkpoint) -> ConvertOptions:
    """What a request asks of every target, for this checkpoint."""
    context_length = min(request.context_length, checkpoint.spec.max_context_length)
    options = ConvertOptions(context_length=context_length, is_verified=request.verify)
    fitting = tuple(length for length in options.prefill_lengths if length < options.context_length)
    return replace(options, prefill_lengths=fitting)


@dataclass(frozen=True)
class _Accepted:
    """One target x recipe that passed every check, and the size it was promised to come to."""

    target: Target
    recipe: Recipe
    promised_bits_per_weight: float


@dataclass
class _Conversion:
    """One run of `convert` after its source has been read."""

    request: ConvertRequest
    parts: Parts
    progress: Progress
    out: OutputFolder
    checkpoint: Checkpoint
    targets: Sequence[Target]
    recipes: Sequence[Recipe]

    def run(self) -> ConvertResult:
        options = options_of(self.request, self.checkpoint)
        accepted, refused = self._judged(options)
        root = self.parts.work_root() / self.checkpoint.content_hash[:32]
        with explained(f"use the work folder {root}", root):
            work = WorkFolder(root, forget=None if self.request.resume else _is_resumable)
        reports: list[BundleReport] = []
        try:
            jobs = self._jobs(options, work, accepted)
            there = {job.name: report for job in jobs if (report := self._already_there(job)) is not None}
            todo = self._within_budget([job for job in jobs if job.name not in there], work)
            give_back_memory()  # what the checks have freed would count beside the children's work
            made = dict(zip((job.name for job in todo), self._make(todo), strict=True))
            done = {(report.target, report.recipe): report for report in (there | made).values()}
            done |= {pair: BundleReport.failed(self.checkpoint.name, *pair, error) for pair, error in refused.items()}
            reports = [done[target.name, recipe.name] for target in self.targets for recipe in self.recipes]
        finally:
            is_done = bool(reports) and all(report.error is None for report in reports)
            work.leave(drop=_is_resumable if is_done else None)
        return ConvertResult(tuple(reports))

    def _judged(self, options: ConvertOptions) -> tuple[list[_Accepted], dict[tuple[str, str], ToolkitError]]:
        """What can be written, and (target, recipe) -> why the rest cannot; raised when nothing else was asked for.

        A wrong word of one target's recipe must not cost the user the other target's bundle; with one target there is
        nothing to save, and a command that is half wrong is better refused whole.
        """
        accepted: list[_Accepted] = []
        refused: dict[tuple[str, str], ToolkitError] = {}
        for target in self.targets:
            for recipe in self.recipes:
                try:
                    recipe.require_one_table(is_tied=self.checkpoint.spec.tie_embeddings)
                    writer = suited(target, self.checkpoint.spec.model_type)
                    writer.check(self.checkpoint, [recipe], options)
                    accepted.append(_Accepted(writer, recipe, writer.promise(self.checkpoint, recipe)))
                except ToolkitError as error:
                    if len(self.targets) == 1:
                        raise
                    refused[target.name, recipe.name] = error
        if refused and not accepted:
            raise next(iter(refused.values()))
        return accepted, refused

    def _make(self, jobs: Sequence[Job]) -> list[BundleReport]:
        """Run the jobs: one by one where memory is tight, else two at a time, with the checkpoint answering during lowering."""
        peaks = [self._estimate(jobs, job, job.options).peak_memory_bytes for job in jobs]
        is_tight = any(job.options.is_lean for job in jobs) or max(peaks, default=0) > SIDE_BY_SIDE_BYTES
        n_at_once = 1 if is_tight else self.parts.n_at_once
        if n_at_once == 1 or not jobs:
            return [job.run() for job in jobs]
        ahead: list[Ahead[None]] = []
        try:
            # What fails here is remembered, and raised again in the report of every job it concerns.
            for job in jobs:
                with suppress(Exception):
                    job.write_checkpoint()
            if self.request.verify:
                ahead.append(Ahead(jobs[0].ask_checkpoint))
            for job in {job.target.name: job for job in jobs}.values():
                with suppress(Exception):
                    job.lower()
            return side_by_side([job.run for job in jobs], n_at_once=n_at_once, stop=end_children)
        finally:
            wait_until_stopped(ahead, end_children)

    def _jobs(self, options: ConvertOptions, work: WorkFolder, accepted: Sequence[_Accepted]) -> list[Job]:
        shared = Shared(self.request, self.parts, self.progress, self.out, self.checkpoint, work)
        return [Job(shared, each.target, each.recipe, options, each.promised_bits_per_weight) for each in accepted]

    def _already_there(self, job: Job) -> BundleReport | None:
        if self.request.force:
            self.out.require_free(job.name, force=True)  # before the work: what is no bundle is not replaced after it either
            return None
        place = self.out.path / job.name
        report = same_bundle(place, job.conversion_key, job.recipe.gates, verify=self.request.verify)
        if report is None:
            self.out.require_free(job.name, force=False)
        else:
            self.progress.note(f"{place} is there already, not converted again")
        return report

    def _within_budget(self, jobs: Sequence[Job], work: WorkFolder) -> list[Job]:
        """The jobs, on the lean path where only that fits in memory. Raises BudgetError if disk or memory will not do."""
        self._check_disk(jobs, work)
        chosen: list[Job] = []
        paths: dict[str, ConvertOptions] = {}
        for job in jobs:
            if job.target.name not in paths:
                paths[job.target.name] = choose_memory_path(
                    partial(self._estimate, jobs, job),
                    job.options,
                    is_warm=work.looks_finished(job.lower_stage()),
                    max_memory_bytes=self.request.max_memory_bytes,
                    free=self.parts.free_memory(),
                    hard=self.parts.hard_limit(),
                )
                if paths[job.target.name].is_lean:
                    self.progress.note(f"{job.target.name}: memory is tight, taking the leaner, slower path")
            chosen.append(replace(job, options=paths[job.target.name]))
        return chosen

    def _estimate(self, jobs: Sequence[Job], of: Job, options: ConvertOptions) -> Estimate:
        """What all jobs of one job's target are going to need."""
        recipes = [job.recipe for job in jobs if job.target.name == of.target.name]
        return of.target.estimate(self.checkpoint, recipes, options)

    def _check_disk(self, jobs: Sequence[Job], work: WorkFolder) -> None:
        if not jobs:
            return
        n_parameters = self.checkpoint.spec.n_parameters
        weights = {job.name: int(job.promised_bits_per_weight * n_parameters / 8) for job in jobs}
        has_reference = any((work.root / REFERENCE).glob("*"))
        is_read = any(job.target.reads_hf_directory for job in jobs) or (self.request.verify and not has_reference)
        needs_directory = is_read and not work.looks_finished(jobs[0].hf_stage())
        scratch = sum(weights.values()) + (4 * n_parameters if needs_directory else 0)
        for job in {job.target.name: job for job in jobs}.values():
            estimate = self._estimate(jobs, job, job.options)
            scratch += estimate.verify_disk_bytes + (0 if work.looks_finished(job.lower_stage()) else estimate.disk_bytes)
        if self.request.verify and not has_reference:
            scratch += self.parts.reference_bytes(self.checkpoint)
        finished = sum(size + TOKENIZER_ALLOWANCE_BYTES for size in weights.values())
        self.progress.note(f"disk: about {format_bytes(scratch)} of work files, {format_bytes(finished)} of bundles")
        check_disk({work.root: scratch, self.out.path: finished})


def _is_resumable(stage_folder: str) -> bool:
    """Stages only an interrupted run of the same conversion is interested in; the float model serves every later recipe."""
    return stage_folder.startswith(_RESUMABLE)
