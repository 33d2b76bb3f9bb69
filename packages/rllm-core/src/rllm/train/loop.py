"""The training loop: the one place that sees the whole flow.

    task ──▶ rollout ──▶ trace ──▶ reward ──▶ advantage ──▶ rows ──▶ update ──▶ (new policy version)

Synchronous and on-policy: a batch is rolled out, the policy is updated on it, the new weights are published, and only
then the next batch starts. Left out on purpose, for later: rolling out while updating.

Between two steps nothing is in flight, and random numbers are functions of the seed and of what they are for. So a run
that was stopped goes on from its newest checkpoint, and does again, bit for bit, what it had begun.
"""

__all__ = ["TrainResult", "train"]

import contextlib
import dataclasses
import itertools
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from rllm.config import TrainConfig
from rllm.configure import describe_settings
from rllm.errors import RLLMError
from rllm.evals.baseline import best_constant_answer
from rllm.evals.folder import RunFolder, default_run_dir, read_metrics
from rllm.evals.runner import sampling_params
from rllm.evals.runs import flat_settings
from rllm.evals.serving import open_serving
from rllm.evals.statistics import Summary
from rllm.plugins import PluginManager
from rllm.protocols import LoggerRequest
from rllm.rollouts import BugWatch, RolloutRunner
from rllm.train.batch import require_targets, to_batch
from rllm.train.checkpoints import Checkpoint, Checkpoints, Cursor
from rllm.train.checks import check_capabilities
from rllm.train.display import Display
from rllm.train.loggers import Loggers
from rllm.train.metrics import UpdateReport, regrading_metrics, rollout_metrics, task_metrics, update_metrics
from rllm.train.preparing import prepare
from rllm.train.resuming import check_same_run, identity_of, restore
from rllm.train.run import Run, TrainResult, export_run, save_what_there_is
from rllm.train.schedule import learning_rate, task_batches
from rllm.train.signal_report import signal_report
from rllm.train.stopping import RunStopped, Stopping
from rllm.train.updating import update
from rllm.train.validating import validate, validate_if_due
from rllm.types import Episode, Task

log = logging.getLogger("rllm.train")

REGRADED = 8
"""Rollouts of the first batch that are graded twice: an evaluator that throws dice is said."""


async def train(
    config: TrainConfig,
    plugins: PluginManager,
    *,
    tasks: Any = None,
    agent: Any = None,
    evaluator: Any = None,
    console: Console | None = None,
    resume: bool = False,
    allow_changes: bool = False,
    stopping: Stopping | None = None,
) -> TrainResult:
    """A whole training run. ``tasks``, ``agent`` and ``evaluator`` may be Python objects instead of the config's names.

    ``resume`` goes on with the run in ``config.run_dir``; what was started with other settings, another agent or other
    tasks is refused, but for ``allow_changes``. ``stopping`` may ask it to end early. Raises an RLLMError with what to
    do; what was finished by then (metrics, traces, a checkpoint, and the model where at least one update was made) is
    in the run's folder.
    """
    prepared = prepare(config, plugins, tasks=tasks, agent=agent, evaluator=evaluator)
    parts, train_tasks, held_out = prepared.parts, prepared.train_tasks, prepared.held_out
    total = prepared.total_steps
    path = Path(config.run_dir) if config.run_dir else default_run_dir(parts.source.name, "train")
    folder = RunFolder(path, resumes=resume)
    error: BaseException | None = None
    display = Display(
        f"rllm train {parts.source.name}",
        total_steps=total,
        time_limit_s=config.time_limit_s,
        console=console or Console(),
    )
    checkpoints = Checkpoints(folder.checkpoints, config.checkpoint, display.say)
    identity = identity_of(parts, train_tasks, held_out)
    start: Checkpoint | None = None
    loggers: Loggers | None = None
    try:
        if resume:
            start = checkpoints.newest()
            before = identity if start is None else start.cursor.identity
            for change in check_same_run(
                folder.path, describe_settings(config), before, identity, allow_changes=allow_changes
            ):
                display.say(f"changed: {change}")
        folder.write_config(describe_settings(config))
        loggers = Loggers(config, plugins, _logger_request(config, folder, start), display.say)
        with display:
            display.say(f"run folder {folder.path}")
            display.say(f"loading {config.model}")
            async with open_serving(config, plugins, folder.traces, display.say) as serving:
                backend = serving.backend
                if backend is None:
                    raise RLLMError("a model that can't be trained passed the checks; this is a bug in rLLM")
                check_capabilities(config, backend.capabilities)
                sampling = sampling_params(config.sampling, parts.source)
                runner = RolloutRunner(
                    serving.gateway, plugins, parts.flow, parts.evaluator, config.rollout, serving.model.name
                )
                cursor = start.cursor if start is not None else Cursor.of_a_new_run(identity)
                cursor = dataclasses.replace(cursor, identity=identity)
                serving.store.rewind(cursor.traces)
                folder.rewind_metrics(cursor.metrics_bytes)
                if start is not None:
                    await restore(backend, start, allow_changes=allow_changes, say=display.say)
                    display.say(f"going on after step {cursor.steps}")
                run = Run(
                    *(config, plugins, folder, display, parts, serving, backend, runner, sampling, held_out, total),
                    *(checkpoints, loggers, stopping or Stopping(), cursor),
                    has_updated=cursor.steps > 0,
                )
                if start is None:
                    run.record({"step": 0, **task_metrics(train_tasks, held_out)})
                with run.stopping.attached(display.say):
                    result = await _train(run, train_tasks)
                checkpoints.finish()
        folder.write_json("report.json", result.as_dict())
        for finding in result.findings:
            display.say(f"signal: {finding}")
        return result
    except BaseException as raised:
        error = raised
        raise
    finally:
        if loggers is not None:
            loggers.close(error)
        folder.close()
        plugins.notify("rllm_run_finished", run_dir=str(folder.path), error=error)


def _logger_request(config: TrainConfig, folder: RunFolder, start: Checkpoint | None) -> LoggerRequest:
    return LoggerRequest(
        run_id=folder.run_id,
        name=folder.path.resolve().name,
        run_dir=folder.path,
        settings=dict(flat_settings(describe_settings(config))),
        steps=0 if start is None else start.cursor.steps,
    )


async def _train(run: Run, train_tasks: Sequence[Task]) -> TrainResult:
    config = run.config
    model = run.backend.model
    run.display.say(
        f"{model.name}: {model.n_parameters / 1e6:.1f}M parameters, {len(train_tasks)} training tasks, "
        f"{len(run.held_out)} held out; batches of {config.batch_tasks} tasks × {config.group_size} rollouts"
    )
    constant = None
    if run.held_out and run.parts.evaluator is not None:
        constant = await best_constant_answer(
            run.held_out, run.parts.evaluator, timeout_s=config.rollout.evaluator_timeout_s
        )
        if constant is not None:
            run.display.say(f"the best constant answer is {constant[0]!r}: reward {constant[1]:.3f}")
    after: Summary | None = None
    is_whole = False
    try:
        with contextlib.suppress(RunStopped):
            await _steps(run, train_tasks)
            await run.checkpoints.save(run.backend, run.cursor)
            after = await validate(run, "after")
            is_whole = True
        if run.has_updated:
            await run.checkpoints.save(run.backend, run.cursor)
            await export_run(run, after)
    except BaseException:
        await save_what_there_is(run)
        raise
    before = run.cursor.before
    return TrainResult(
        tasks=run.parts.source.name,
        run_dir=str(run.folder.path),
        model_dir=str(run.folder.model) if run.has_updated else None,
        steps=run.steps,
        training_s=run.cursor.training_s,
        before=None if before is None else Summary.from_dict(before),
        after=after,
        constant=constant,
        stopped_by=None if is_whole else run.stopping.by,
        findings=signal_report(read_metrics(run.folder.path)),
    )


async def _steps(run: Run, train_tasks: Sequence[Task]) -> None:
    """Batch after batch, up to the limit that is reached first. Raises RunStopped between two where one asks for it."""
    config, watch = run.config, BugWatch()
    await validate_if_due(run)
    for tasks in itertools.islice(task_batches(train_tasks, config.batch_tasks, config.seed), run.steps, None):
        if run.total_steps is not None and run.steps >= run.total_steps:
            break
        if config.time_limit_s is not None and run.cursor.training_s >= config.time_limit_s:
            break
        if run.stopping.by is not None:
            raise RunStopped
        await _one_step(run, tasks, watch)
        await validate_if_due(run)
        if run.checkpoints.is_due(run.steps):
            await run.checkpoints.save(run.backend, run.cursor)


async def _one_step(run: Run, tasks: list[Task], watch: BugWatch) -> None:
    """One batch, from rollouts to published weights."""
    config, started = run.config, time.monotonic()
    done, wanted = 0, len(tasks) * config.group_size

    def on_episode(episode: Episode) -> None:
        nonlocal done
        done += 1
        run.serving.store.append_episode(episode)
        run.display.progress("rollouts", done, wanted)

    episodes = await run.runner.run(
        tasks,
        config.group_size,
        run.sampling,
        is_training=True,
        phase=f"train/{run.steps}",
        on_episode=on_episode,
        regrade=REGRADED if run.steps == 0 else 0,
    )
    rolled_out = time.monotonic()
    watch.check(episodes)
    batch = to_batch(episodes, config, run.plugins, sampling=run.sampling, step=run.steps)
    require_targets(batch, is_first=run.steps == 0)
    for scored in batch.scored:
        run.plugins.notify("rllm_group_scored", group=scored.group, advantages=scored.advantages_G.tolist())
    results = await update(run, batch)
    now = time.monotonic()
    steps, training_s = run.steps + 1, run.cursor.training_s + now - started
    version = run.backend.sampler().version
    metrics: dict[str, Any] = {
        "step": steps,
        "version": version,
        "lr": learning_rate(config.optimizer, run.steps, run.total_steps),
        **rollout_metrics(episodes, rolled_out - started, group_size=config.group_size),
        **(regrading_metrics(run.runner.stats) if run.steps == 0 else {}),
        **batch.metrics,
        **update_metrics(results, now - rolled_out),
        "time/step_s": now - started,
        "time/training_s": training_s,
    }
    run.record(metrics)
    run.move(steps=steps, training_s=training_s, is_validated=False, reward=None)
    report = UpdateReport(steps, version, metrics)
    run.display.updated(report, training_s)
    run.plugins.notify("rllm_update_finished", report=report)
