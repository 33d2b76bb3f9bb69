"""One evaluation: rollouts of an agent on held-out (or any) tasks, graded and summarised.

``rllm eval`` runs it by itself; training runs it before, during and after.
"""

__all__ = ["EvalReport", "evaluate", "run_eval"]

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm.agents.builtin import chat
from rllm.config import EvalConfig, SamplingConfig
from rllm.configure import describe_settings, settings_of
from rllm.errors import ConfigError, TaskError
from rllm.evals.baseline import best_constant_answer
from rllm.evals.folder import RunFolder, default_run_dir
from rllm.evals.serving import Serving, open_serving
from rllm.evals.statistics import Summary, summarise
from rllm.models import find_model
from rllm.plugins import PluginManager
from rllm.protocols import Evaluator, TaskSource
from rllm.reward import as_evaluator
from rllm.rollouts import NO_EVALUATOR, BugWatch, Rollout, RolloutRunner, as_flow
from rllm.tasks import as_task_source
from rllm.trace import TraceStore
from rllm.types import Episode, SamplingParams, Task

DEFAULT_MAX_TOKENS = 512

Progress = Callable[[int, int, Episode], None]
"""``progress(done, total, episode)``, after each rollout."""


@dataclass(frozen=True)
class EvalReport:
    """What ``rllm eval`` says, and writes to ``report.json``."""

    run_dir: str
    tasks: str
    model: str
    summary: Summary
    constant: tuple[str, float] | None
    """The best constant answer and its reward; None where there is none to be had."""
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """As plain data for a JSON file."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Parts:
    """What a run rolls out: where the tasks come from, which agent, which grader."""

    source: TaskSource
    flow: Rollout
    evaluator: Evaluator | None


def resolve_parts(config: Any, plugins: PluginManager, *, tasks: Any, agent: Any, evaluator: Any) -> Parts:
    """The task source, agent and evaluator that a configuration (or a Python caller's own objects) means."""
    source = as_task_source(tasks if tasks is not None else config.tasks, settings_of(config, config.tasks), plugins)
    chosen_agent = agent if agent is not None else config.agent
    flow = as_flow(chosen_agent if chosen_agent is not None else source.agent, plugins)
    chosen_evaluator = evaluator if evaluator is not None else config.evaluator
    grader = source.evaluator if chosen_evaluator is None else as_evaluator(chosen_evaluator, plugins)
    if grader is None and flow.function is chat:
        # Any other agent may return its own rewards; this one never does, so it is said before a model is loaded.
        raise ConfigError(NO_EVALUATOR)
    return Parts(source, flow, grader)


def sampling_params(config: SamplingConfig, source: TaskSource) -> SamplingParams:
    """The run's sampling, with the completion limit of the task source where the run sets none."""
    limit = config.max_tokens or source.max_tokens or DEFAULT_MAX_TOKENS
    return SamplingParams(
        max_tokens=limit,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
    )


async def evaluate(
    runner: RolloutRunner,
    tasks: Sequence[Task],
    samples: int,
    sampling: SamplingParams,
    store: TraceStore,
    *,
    progress: Progress | None = None,
    phase: str = "evaluation",
) -> tuple[Summary, list[Episode]]:
    """Roll out, grade and summarise. One ``phase`` draws with the same seeds each time, so that before and after
    differ by the policy alone."""
    done = 0
    total = len(tasks) * samples

    def on_episode(episode: Episode) -> None:
        nonlocal done
        done += 1
        store.append_episode(episode)
        if progress is not None:
            progress(done, total, episode)

    episodes = await runner.run(tasks, samples, sampling, is_training=False, phase=phase, on_episode=on_episode)
    return summarise(episodes), episodes


async def run_eval(
    config: EvalConfig,
    plugins: PluginManager,
    *,
    tasks: Any = None,
    agent: Any = None,
    evaluator: Any = None,
    progress: Progress | None = None,
) -> EvalReport:
    """A whole evaluation, from the configuration to its folder."""
    started = time.monotonic()
    find_model(config.model)  # an unknown name is said before the run has a folder
    parts = resolve_parts(config, plugins, tasks=tasks, agent=agent, evaluator=evaluator)
    chosen = parts.source.held_out() if config.split == "held_out" else parts.source.train()
    if config.limit is not None:
        chosen = chosen[: config.limit]
    if not chosen:
        raise TaskError(
            f"the task source {parts.source.name!r} has no {config.split.replace('_', '-')} tasks. "
            "Take the others with split=train, or give it some to hold out"
        )
    folder = RunFolder(Path(config.run_dir) if config.run_dir else default_run_dir(parts.source.name, "eval"))
    try:
        folder.write_config(describe_settings(config))
        async with open_serving(config, plugins, folder.traces) as serving:
            runner = _runner(serving, plugins, parts, config)
            sampling = sampling_params(config.sampling, parts.source)
            summary, episodes = await evaluate(
                runner, chosen, config.samples, sampling, serving.store, progress=progress
            )
            BugWatch().check(episodes)
        limit_s = config.rollout.evaluator_timeout_s
        constant = (
            None if parts.evaluator is None else await best_constant_answer(chosen, parts.evaluator, timeout_s=limit_s)
        )
        report = EvalReport(
            run_dir=str(folder.path),
            tasks=parts.source.name,
            model=config.model,
            summary=summary,
            constant=constant,
            seconds=time.monotonic() - started,
        )
        folder.write_json("report.json", report.as_dict())
        return report
    finally:
        folder.close()


def _runner(serving: Serving, plugins: PluginManager, parts: Parts, config: EvalConfig) -> RolloutRunner:
    return RolloutRunner(serving.gateway, plugins, parts.flow, parts.evaluator, config.rollout, serving.model.name)
