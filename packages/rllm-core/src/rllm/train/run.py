"""What the steps of one run share, and what comes of it."""

__all__ = ["Run", "TrainResult", "export_model", "export_run", "save_what_there_is"]

import asyncio
import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm.config import TrainConfig
from rllm.errors import RLLMError, RunFolderError
from rllm.evals.folder import RunFolder
from rllm.evals.runner import Parts
from rllm.evals.serving import Serving
from rllm.evals.statistics import Summary
from rllm.plugins import PluginManager
from rllm.protocols import ExportKind, TrainBackend
from rllm.rollouts import RolloutRunner
from rllm.train.card import model_card
from rllm.train.checkpoints import Checkpoints, Cursor
from rllm.train.display import Display
from rllm.train.loggers import Loggers
from rllm.train.signal_report import Finding
from rllm.train.stopping import Stopping
from rllm.types import SamplingParams, Task


@dataclass(frozen=True)
class TrainResult:
    """What a run came to; also its ``report.json``."""

    tasks: str
    run_dir: str
    model_dir: str | None
    """The trained model, a Hugging Face folder; None where the run was stopped before its first update."""
    steps: int
    """Batches trained on."""
    training_s: float
    """Seconds of rollouts and updates, validation aside."""
    before: Summary | None
    """The validation before training; None where there are no held-out tasks."""
    after: Summary | None
    constant: tuple[str, float] | None
    """The best constant answer on the held-out tasks and its reward."""
    stopped_by: str | None = None
    """What asked the run to stop before its end (``SIGINT``, ``SIGTERM``, ``stop()``); it can be resumed."""
    findings: Sequence[Finding] = ()
    """Why the run may have learnt little; none where its signal is sound."""

    def as_dict(self) -> dict[str, Any]:
        """As plain data for a JSON file."""
        return dataclasses.asdict(self)


@dataclass
class Run:
    """What the steps of one run share."""

    config: TrainConfig
    plugins: PluginManager
    folder: RunFolder
    display: Display
    parts: Parts
    serving: Serving
    backend: TrainBackend
    runner: RolloutRunner
    sampling: SamplingParams
    held_out: Sequence[Task]
    total_steps: int | None
    checkpoints: Checkpoints
    loggers: Loggers
    stopping: Stopping
    cursor: Cursor
    """Of the last moment between two steps."""
    is_between: bool = True
    """Whether the weights are those of the cursor."""
    has_updated: bool = False

    @property
    def steps(self) -> int:
        """Batches trained on."""
        return self.cursor.steps

    def record(self, metrics: Mapping[str, Any]) -> None:
        """A line of metrics, to the run's folder and the loggers."""
        self.folder.append_metrics(metrics)
        self.loggers.log(metrics, metrics["step"])

    def move(self, **changes: Any) -> None:
        """The cursor to now."""
        self.cursor = dataclasses.replace(
            self.cursor, **changes, traces=self.serving.store.mark(), metrics_bytes=self.folder.metrics_bytes
        )
        self.is_between = True


async def export_run(run: Run, after: Summary | None) -> None:
    """The model as it is now, in the run's folder; ``after`` is the last validation, for its card."""
    before = None if run.cursor.before is None else Summary.from_dict(run.cursor.before)

    def card(what: ExportKind) -> str:
        return model_card(run.config, run.parts.source.name, what, steps=run.steps, before=before, after=after)

    await export_model(run.backend, run.folder, has_adapter=run.config.lora.rank > 0, card=card)


async def export_model(
    backend: TrainBackend, folder: RunFolder, *, has_adapter: bool, card: Callable[[ExportKind], str]
) -> None:
    """A model, with LoRA the adapter by itself too, each with its card; each goes in the place of the one before when
    it is whole.

    Raises RunFolderError where the disk does not take it.
    """
    kinds: dict[ExportKind, Path] = {"model": folder.model}
    if has_adapter:
        kinds["adapter"] = folder.adapter
    for what, final in kinds.items():
        partial = final.with_name(f"{final.name}.partial")
        try:
            await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)
            await backend.export(partial, what)
            (partial / "README.md").write_text(card(what), encoding="utf-8")
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise RunFolderError(
                f"the {what} can't be written to {str(final)!r}: {error.strerror or error}. Free space there and "
                "resume; what the checkpoints hold is whole"
            ) from error
        folder.replace_folder(partial, final)


async def save_what_there_is(run: Run) -> None:
    """Of a run that is being stopped by an error, which is the one to be raised: what fails here is only said."""
    if run.stopping.is_now:
        run.display.say(f"stopped at once, in step {run.steps + 1}; go on with: rllm train --resume {run.folder.path}")
        return
    if not run.has_updated:
        return
    try:
        if run.is_between:
            await run.checkpoints.save(run.backend, run.cursor)
        await export_run(run, None)
        run.display.say(f"stopped after {run.steps} steps; the model as it is now: {run.folder.model}")
    except (RLLMError, OSError) as error:
        run.display.say(f"stopped after {run.steps} steps; what was done since the last checkpoint is lost: {error}")
    run.display.say(f"go on with: rllm train --resume {run.folder.path}")
