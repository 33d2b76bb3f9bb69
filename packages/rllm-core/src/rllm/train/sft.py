"""Supervised fine-tuning: the likelihood of given replies, in the same run folders, and resumed in the same way.

conversations ──▶ rows (targets: what an assistant says) ──▶ cross_entropy ──▶ update
"""

__all__ = ["SftResult", "check_sft", "sft", "sft_identity"]

import contextlib
import dataclasses
import hashlib
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from rllm.config import SftConfig
from rllm.configure import describe_settings
from rllm.errors import ConfigError, RLLMError
from rllm.evals.folder import RunFolder, default_run_dir
from rllm.evals.serving import make_backend
from rllm.loading import looked_for
from rllm.models import resolve_model
from rllm.plugins import PluginManager
from rllm.protocols import AdamParams, Capabilities, LossSpec, TrainBackend
from rllm.rendering import Renderer
from rllm.train.card import sft_card
from rllm.train.checkpoints import Checkpoints, Cursor
from rllm.train.conversations import Conversation, conversations_of
from rllm.train.display import Display
from rllm.train.metrics import UpdateReport
from rllm.train.resuming import check_same_run, restore
from rllm.train.run import export_model
from rllm.train.schedule import learning_rate, planned_sft_steps, task_batches
from rllm.train.stopping import RunStopped, Stopping
from rllm.update import weigh

LOSS = "cross_entropy"


@dataclass(frozen=True)
class SftResult:
    """What it came to; also its ``report.json``."""

    data: str
    run_dir: str
    model_dir: str | None
    steps: int
    training_s: float
    before: float | None
    """The loss on the held-out conversations, nats a token; None where there are none."""
    after: float | None
    stopped_by: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As plain data for a JSON file."""
        return dataclasses.asdict(self)


async def sft(
    config: SftConfig,
    plugins: PluginManager,
    *,
    console: Console | None = None,
    resume: bool = False,
    allow_changes: bool = False,
    stopping: Stopping | None = None,
) -> SftResult:
    """A whole run. Raises an RLLMError with what to do; what was finished by then is in the run's folder."""
    if not config.data:
        raise ConfigError("no data are given: name a file of conversations, as in `rllm sft chats.jsonl`")
    identity = sft_identity(config)  # a missing file is said before a model is fetched
    source = resolve_model(config.model)
    path = Path(config.run_dir) if config.run_dir else default_run_dir(config.data, "sft")
    display = Display(
        f"rllm sft {config.data}", total_steps=config.steps, console=console or Console(), drawn="update/loss"
    )
    folder = RunFolder(path, resumes=resume)
    backend: TrainBackend | None = None
    try:
        checkpoints = Checkpoints(folder.checkpoints, config.checkpoint, display.say)
        start = checkpoints.newest() if resume else None
        if resume:
            before = identity if start is None else start.cursor.identity
            settings = describe_settings(config)
            for change in check_same_run(folder.path, settings, before, identity, allow_changes=allow_changes):
                display.say(f"changed: {change}")
        folder.write_config(describe_settings(config))
        with display:
            display.say(f"run folder {folder.path}")
            display.say(f"loading {config.model}")
            backend = make_backend(config, plugins, source)
            check_sft(config, backend.capabilities)
            renderer = Renderer(backend.model.tokenizer, context_tokens=backend.model.context_tokens)
            train, held_out = conversations_of(config.data, renderer, held_out=config.held_out, seed=config.seed)
            display.total = planned_sft_steps(config, len(train))
            cursor = start.cursor if start is not None else Cursor.of_a_new_run(identity)
            folder.rewind_metrics(cursor.metrics_bytes)
            if start is not None:
                await restore(backend, start, allow_changes=allow_changes, say=display.say)
                display.say(f"going on after step {cursor.steps}")
            run = _Sft(config, plugins, folder, display, backend, checkpoints, stopping or Stopping(), cursor)
            with run.stopping.attached(display.say):
                result = await run.train(train, held_out)
            checkpoints.finish()
        folder.write_json("report.json", result.as_dict())
        return result
    finally:
        if backend is not None:
            await backend.close()
        folder.close()


@dataclass
class _Sft:
    config: SftConfig
    plugins: PluginManager
    folder: RunFolder
    display: Display
    backend: TrainBackend
    checkpoints: Checkpoints
    stopping: Stopping
    cursor: Cursor

    async def train(self, train: Sequence[Conversation], held_out: Sequence[Conversation]) -> SftResult:
        """From the loss before to the model that is exported."""
        self.display.say(
            f"{self.backend.model.name}: {self.backend.model.n_parameters / 1e6:.1f}M parameters, {len(train)} "
            f"conversations ({sum(c.n_targets for c in train)} tokens to learn), {len(held_out)} held out"
        )
        if not self.cursor.is_validated and self.cursor.steps == 0:
            before = await self._loss(held_out, "before")
            self._move(before=None if before is None else {"loss": before}, is_validated=True)
        after: float | None = None
        is_whole = False
        try:
            with contextlib.suppress(RunStopped):
                await self._steps(train)
                await self.checkpoints.save(self.backend, self.cursor)
                after = await self._loss(held_out, "after")
                is_whole = True
            await self.checkpoints.save(self.backend, self.cursor)
            before = None if self.cursor.before is None else self.cursor.before["loss"]
            await export_model(
                self.backend,
                self.folder,
                has_adapter=self.config.lora.rank > 0,
                card=lambda what: sft_card(self.config, what, steps=self.cursor.steps, before=before, after=after),
            )
        except RLLMError:
            self.display.say(f"go on with: rllm sft --resume {self.folder.path}")
            raise
        return SftResult(
            data=self.config.data,
            run_dir=str(self.folder.path),
            model_dir=str(self.folder.model),
            steps=self.cursor.steps,
            training_s=self.cursor.training_s,
            before=before,
            after=after,
            stopped_by=None if is_whole else self.stopping.by,
        )

    async def _steps(self, train: Sequence[Conversation]) -> None:
        total = planned_sft_steps(self.config, len(train))
        batches = task_batches(train, self.config.batch_size, self.config.seed)
        for batch in itertools.islice(batches, self.cursor.steps, total):
            if self.stopping.by is not None:
                raise RunStopped
            await self._step(batch, total)
            if self.checkpoints.is_due(self.cursor.steps):
                await self.checkpoints.save(self.backend, self.cursor)

    async def _step(self, batch: Sequence[Conversation], total: int) -> None:
        started, opt, done = time.monotonic(), self.config.optimizer, self.cursor.steps
        rows = weigh([row for c in batch for row in c.rows], "token_mean", max_tokens=1, n_rollouts=1)
        rate = learning_rate(opt, done, total)
        adam = AdamParams(lr=rate, beta1=opt.beta1, beta2=opt.beta2, eps=opt.eps,
                          weight_decay=opt.weight_decay, clip_norm=opt.clip_norm)  # fmt: skip
        found = await self.backend.train_step(rows, LossSpec(LOSS, self.plugins.get("loss", LOSS).value), adam)
        await self.backend.publish()
        seconds = time.monotonic() - started
        metrics = {
            "step": done + 1,
            "lr": rate,
            "update/loss": found.loss,
            "update/grad_norm": found.grad_norm,
            "update/entropy": found.metrics["entropy"],
            "update/target_tokens": sum(row.n_targets for row in rows),
            "time/step_s": seconds,
            "time/training_s": self.cursor.training_s + seconds,
        }
        self.folder.append_metrics(metrics)
        self._move(steps=done + 1, training_s=self.cursor.training_s + seconds)
        self.display.updated(UpdateReport(done + 1, done + 1, metrics), self.cursor.training_s)

    async def _loss(self, held_out: Sequence[Conversation], when: str) -> float | None:
        """Nats a token on the held-out conversations."""
        rows = [row for c in held_out for row in c.rows]
        if not rows:
            return None
        logprobs = await self.stopping.unless_asked(self.backend.logprobs(rows, of="current"))
        loss = -sum(float(lp.sum()) for lp in logprobs) / sum(row.n_targets for row in rows)
        self.folder.append_metrics({"step": self.cursor.steps, "validation/loss": loss})
        self.display.say(f"validation {when}: loss {loss:.4f} nats a token ({len(held_out)} held-out conversations)")
        return loss

    def _move(self, **changes: Any) -> None:
        self.cursor = dataclasses.replace(self.cursor, **changes, metrics_bytes=self.folder.metrics_bytes)


def check_sft(config: SftConfig, can: Capabilities) -> None:
    """Raise ConfigError for what this backend can't honour."""
    for is_refused, name, value in (
        (can.losses is not None and LOSS not in can.losses, "the loss", LOSS),
        (config.lora.rank > 0 and not can.lora, "lora.rank", config.lora.rank),
        (config.lora.rank == 0 and not can.full_finetuning, "lora.rank", 0),
    ):
        if is_refused:
            raise ConfigError(f"the backend {config.backend!r} can't honour {name} {value!r}; choose another one")


def sft_identity(config: SftConfig) -> dict[str, str]:
    """What a run is beside its settings: what its file holds. Raises ConfigError where that can't be read."""
    path = config.data
    try:
        return {"data": hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest()[:16]}
    except OSError as error:
        raise ConfigError(f"the file {path!r} can't be read: {error.strerror} {looked_for(path)}") from error
