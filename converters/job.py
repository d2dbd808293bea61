"""One target x recipe: from the float model to a published, or refused, bundle."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from converters.existing import same_bundle
from converters.faults import explained
from converters.gates import verdict
from converters.lock import hold
from converters.memory_figures import memory_figures
from converters.package import OutputFolder, seal
from converters.parts import Parts, Verifier
from converters.progress import Progress
from converters.recipe import PROMISE_TOLERANCE, Recipe
from converters.refusal import broken_promise, failed_gates
from converters.request import BundleReport, ConvertRequest, bundle_name
from converters.stages import Stage, WorkFolder, key_of
from converters.targets.base import Assembled, ConvertOptions, Workshop
from toolkit.errors import ToolkitError
from toolkit.manifest import Fidelity, Manifest

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint
    from converters.targets.base import Target

DISTRIBUTION = "ondevice-toolkit"
REFERENCE = "reference"
_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Shared:
    """What all jobs of one conversion have in common; `failed` remembers what need not be tried once more."""

    request: ConvertRequest
    parts: Parts
    progress: Progress
    out: OutputFolder
    checkpoint: Checkpoint
    work: WorkFolder
    failed: dict[str, Exception] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One target x recipe of a conversion."""

    shared: Shared
    target: Target
    recipe: Recipe
    options: ConvertOptions
    promised_bits_per_weight: float

    @property
    def name(self) -> str:
        return bundle_name(self.shared.checkpoint.name, self.target.name, self.recipe.name)

    @cached_property
    def tools(self) -> dict[str, str]:
        return {DISTRIBUTION: _own_version(), **self.target.tools()}

    @property
    def conversion_key(self) -> str:
        return key_of("bundle", self._lower_key, self.target.revision, self.recipe.name, self.recipe.digest())

    @property
    def _lower_key(self) -> str:
        return key_of("lowered", self.shared.checkpoint.content_hash, self.target.name, self.tools, self.options.key())

    def hf_stage(self) -> Stage:
        checkpoint = self.shared.checkpoint

        def build(folder: Path) -> Path:
            with self.shared.progress.stage("tensors", total=len(checkpoint.tensors.names())) as step:
                checkpoint.write_hf(folder / "checkpoint", on_tensor=lambda name: step.advance())
            return folder / "checkpoint"

        return Stage("hf", key_of("hf", checkpoint.content_hash, _own_version()), "writing the checkpoint in float32", build)

    def lower_stage(self) -> Stage:
        def build(folder: Path) -> Path:
            return self.target.lower(self.shared.checkpoint, self.options, folder, self._workshop())

        return Stage(f"lowered-{self.target.name}", self._lower_key, f"{self.target.name}: lowering the float model", build)

    def quantize_stage(self) -> Stage:
        def build(folder: Path) -> Path:
            return self.target.quantize(self.shared.checkpoint, self._lowered(), self.recipe, folder, self._workshop())

        key = key_of("quantized", self._lower_key, self.target.revision, self.recipe.digest())
        title = f"{self.target.name}: quantizing to {self.recipe.name}"
        return Stage(f"quantized-{self.target.name}-{self.recipe.name}", key, title, build)

    def fidelity_stage(self, model: Path) -> Stage:
        def build(folder: Path) -> Path:
            verifier = self.shared.parts.load_verifier()
            reference = self._once("reference", partial(self._reference, verifier))
            figures = verifier.measure(self.target, model, reference, self.recipe.gates)
            (folder / "fidelity.json").write_text(json.dumps(asdict(figures)), encoding="utf-8")
            return folder / "fidelity.json"

        key = key_of("fidelity", self._lower_key, self.target.revision, self.recipe.digest())
        title = f"{self.target.name}: measuring {self.recipe.name} against the checkpoint"
        return Stage(f"fidelity-{self.target.name}-{self.recipe.name}", key, title, build)

    def _hf_dir(self) -> Path:
        return self._run(self.hf_stage())

    def _workshop(self) -> Workshop:
        return Workshop(self.shared.progress, self._hf_dir, self._run)

    def _reference(self, verifier: Verifier) -> Any:
        cache = self.shared.work.root / REFERENCE
        with hold(self.shared.work.root / "reference.lock"), self.shared.progress.stage("answers of the checkpoint itself"):
            cache.mkdir(exist_ok=True)
            return verifier.reference(self.shared.checkpoint, self._hf_dir, cache)

    def _lowered(self) -> Path:
        return self._once(self.lower_stage().name, partial(self._run, self.lower_stage()))

    def _run(self, stage: Stage) -> Path:
        return self.shared.work.run(stage, self.shared.progress)

    def _once(self, what: str, make: Callable[[], _Made]) -> _Made:
        """Make what several recipes need; if it failed for one, it fails for the next without minutes of work."""
        if what in self.shared.failed:
            raise self.shared.failed[what]
        try:
            return make()
        except Exception as error:
            self.shared.failed[what] = error
            raise

    def write_checkpoint(self) -> None:
        """Have the float32 checkpoint written, if lowering or the reference is going to need it."""
        if self.target.reads_hf_directory and not self.shared.work.looks_finished(self.lower_stage()):
            self._once("hf", partial(self._run, self.hf_stage()))

    def lower(self) -> None:
        """Have the float model lowered, if quantizing is going to need it."""
        if not self.shared.work.looks_finished(self.quantize_stage()):
            self._lowered()

    def ask_checkpoint(self) -> None:
        """Have the checkpoint's own answers worked out."""
        self._once("reference", partial(self._reference, self.shared.parts.load_verifier()))

    def run(self) -> BundleReport:
        """Make, verify and publish the bundle. A failure is in the report, never raised; an interrupt is raised."""
        try:
            with explained(f"convert {self.name}", self.shared.work.root):
                self.lower()
                model = self._run(self.quantize_stage())
            with explained(f"write the bundle {self.name}", self.shared.out.path):
                return self._bundle(model)
        except ToolkitError as error:
            return BundleReport.failed(self.shared.checkpoint.name, self.target.name, self.recipe.name, error)

    def _bundle(self, model: Path) -> BundleReport:
        request, progress = self.shared.request, self.shared.progress
        on_wait = lambda: progress.note(f"waiting: another conversion is writing {self.name}")  # noqa: E731
        with self.shared.out.building(self.name, on_wait=on_wait) as folder:
            place = self.shared.out.path / self.name
            there = None if request.force else same_bundle(place, self.conversion_key, self.recipe.gates, verify=request.verify)
            if there is not None:
                return there
            self.shared.out.require_free(self.name, force=request.force)
            with progress.stage(f"{self.target.name}: assembling {self.recipe.name}"):
                assembled = self.target.assemble(self.shared.checkpoint, model, self.recipe, self.options, folder)
            promised, measured = self.promised_bits_per_weight, assembled.bits_per_weight
            failure, fidelity = broken_promise(self.name, self.recipe, promised=promised, measured=measured), None
            if failure is None and request.verify:
                with explained(f"verify {self.name}", self.shared.work.root):
                    fidelity = self._fidelity(model)
                failure = failed_gates(self.name, self.recipe, fidelity)
            if failure is not None:
                return self._refuse(folder, assembled, fidelity, failure)
            manifest = self._manifest(assembled, fidelity)
            if request.verify:
                manifest = replace(manifest, memory=memory_figures(folder, manifest, progress))
            with progress.stage(f"{self.target.name}: publishing {self.recipe.name}"):
                sealed = seal(folder, manifest)
                self.shared.out.publish(folder, self.name, force=request.force)
            return self._report(place, sealed, None)

    def _fidelity(self, model: Path) -> Fidelity:
        figures = Fidelity(**json.loads(self._run(self.fidelity_stage(model)).read_bytes()))
        return replace(figures, gates=dict(self.recipe.gates), verdict=verdict(figures, self.recipe.gates))

    def _refuse(self, folder: Path, assembled: Assembled, fidelity: Fidelity | None, failure: ToolkitError) -> BundleReport:
        """Keep a refused bundle for whoever wants to know why; a full disk must not hide the reason."""
        figures = None if fidelity is None else {name: value if _is_sayable(value) else None for name, value in asdict(fidelity).items()}
        report = {
            **failure.as_json(),
            "bits_per_weight": {
                "promised": self.promised_bits_per_weight,
                "measured": assembled.bits_per_weight,
                "tolerance": PROMISE_TOLERANCE,
            },
            "fidelity": figures,
        }
        manifest = self._manifest(assembled, fidelity)
        try:
            manifest = seal(folder, manifest, report=report)
            place = self.shared.out.refuse(folder, self.name)
        except OSError as error:
            self.shared.progress.note(f"the refused bundle could not be kept: {error}")
            return self._report(None, manifest, failure)
        self.shared.progress.note(f"the refused bundle and its report are in {place}")
        return self._report(place, manifest, failure)

    def _report(self, place: Path | None, manifest: Manifest, failure: ToolkitError | None) -> BundleReport:
        fidelity = manifest.fidelity
        return BundleReport(
            name=self.name,
            target=self.target.name,
            recipe=self.recipe.name,
            path=place,
            bytes=None if place is None else sum(record.bytes for record in manifest.files),
            bits_per_weight=manifest.bits_per_weight,
            fidelity=fidelity,
            verdict="fail" if failure else fidelity.verdict if fidelity else "not verified",
            error=failure,
        )

    def _manifest(self, assembled: Assembled, fidelity: Fidelity | None) -> Manifest:
        checkpoint = self.shared.checkpoint
        recipe: dict[str, Any] = {
            **self.recipe.as_dict(),
            "promised_bits_per_weight": self.promised_bits_per_weight,
            "as_written": assembled.as_written,
            **({"left_out": dict(checkpoint.left_out)} if checkpoint.left_out else {}),
        }
        return Manifest(
            name=checkpoint.name,
            target=self.target.name,
            recipe=recipe,
            spec=checkpoint.spec.as_dict(),
            source=checkpoint.source,
            license=checkpoint.license,
            context_length=self.options.context_length,
            chat=assembled.chat,
            chat_template=assembled.chat_template,
            tokenizer=assembled.tokenizer,
            stop_token_ids=assembled.stop_token_ids,
            bits_per_weight=assembled.bits_per_weight,
            files=(),
            tools=self.tools,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            memory=assembled.memory,
            fidelity=fidelity,
            entry=assembled.entry,
            conversion_key=self.conversion_key,
        )


def _own_version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:  # run from a source tree
        return "source"


def _is_sayable(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
