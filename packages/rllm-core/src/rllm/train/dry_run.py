"""``--dry-run``: all that a run finds and checks before it starts, what it will take, and nothing done.

The model's weights are not read. What only the run itself can tell is left to it: whether an agent and a grader work,
and whether a logger's service can be reached.
"""

__all__ = ["DryRun", "dry_run", "dry_sft"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm.config import SftConfig, TrainConfig
from rllm.configure import AnyConfig, describe_settings
from rllm.errors import BackendError, ConfigError
from rllm.evals.folder import check_run_dir
from rllm.evals.runner import Parts, sampling_params
from rllm.evals.runs import flat_settings
from rllm.evals.serving import make_rehearsal
from rllm.models import find_model
from rllm.plugins import PluginManager
from rllm.protocols import CostEstimate, Rehearsal, Workload
from rllm.rendering import Renderer
from rllm.train.checkpoints import Checkpoints
from rllm.train.checks import check_capabilities
from rllm.train.conversations import conversations_of
from rllm.train.preparing import prepare
from rllm.train.resuming import check_same_run, identity_of
from rllm.train.schedule import planned_sft_steps
from rllm.train.sft import check_sft, sft_identity
from rllm.types import Task

Layers = Sequence[tuple[str, Mapping[str, Any]]]
"""What settings come from, by name, the later ones first in rank."""

RENDERED = 64
"""Questions whose tokens are counted; the mean of these stands for all."""

NO_WEIGHTS_YET = (
    "the model {name} is not here yet, so what a step takes is not known: `rllm model setup {name}` fetches it"
)


@dataclass(frozen=True)
class DryRun:
    """What a run would be."""

    settings: Mapping[str, Any]
    """As resolved, nested: ``config.yaml``."""
    sources: Mapping[str, str]
    """Where each comes from, by dotted name: ``default``, ``given``, the file, or the run that is resumed."""
    parts: Mapping[str, str]
    """What was found: the tasks, the agent, the evaluator, and the plugins of what was chosen."""
    counts: Mapping[str, int | None]
    """Questions, steps (None where the clock ends the run), rollouts, and tokens at most."""
    estimate: CostEstimate | None
    """Of a step; None where the notes say why."""
    total_s: float | None
    """Seconds of the whole run, at most; None where it isn't known."""
    notes: Sequence[str]


def dry_run(
    config: TrainConfig,
    plugins: PluginManager,
    *,
    layers: Layers = (),
    resume: bool = False,
    allow_changes: bool = False,
    tasks: Any = None,
    agent: Any = None,
    evaluator: Any = None,
) -> DryRun:
    """Check a training run and say what it would take. Raises what the run would raise before its first step."""
    prepared = prepare(config, plugins, tasks=tasks, agent=agent, evaluator=evaluator)
    parts, notes = prepared.parts, list[str]()
    done = 0
    if config.run_dir:
        check_run_dir(Path(config.run_dir), resumes=resume)
    if resume:
        identity = identity_of(parts, prepared.train_tasks, prepared.held_out)
        done = _resumed(config, identity, notes, allow_changes=allow_changes)
    limit = sampling_params(config.sampling, parts.source).max_tokens
    rollouts = min(config.batch_tasks, len(prepared.train_tasks)) * config.group_size
    counts = {
        "training questions": len(prepared.train_tasks),
        "held-out questions": len(prepared.held_out),
        "steps": prepared.total_steps,
        "rollouts of a step": rollouts,
        "sampled tokens of a step, at one call a rollout": rollouts
        * min(limit, config.rollout.max_tokens_total or limit),
    }
    rehearsal = _rehearsal(config, plugins, notes)
    estimate = total = None
    if rehearsal is not None:
        check_capabilities(config, rehearsal.capabilities)
        workload = Workload(
            rows=rollouts,
            prompts=min(config.batch_tasks, len(prepared.train_tasks)),
            prompt_tokens=_prompt_tokens(rehearsal, prepared.train_tasks, notes),
            completion_tokens=limit,
            updates=config.minibatches,
            validation_rows=len(prepared.held_out) * config.validation.samples,
        )
        estimate = _estimate(rehearsal, workload, notes)
        left = None if prepared.total_steps is None else prepared.total_steps - done
        total = None if estimate is None else _total_s(config, estimate, left)
    return DryRun(
        *_settings(config, layers), _parts(config, plugins, parts), counts, estimate, total, tuple(notes)
    )  # fmt: skip


def dry_sft(
    config: SftConfig,
    plugins: PluginManager,
    *,
    layers: Layers = (),
    resume: bool = False,
    allow_changes: bool = False,
) -> DryRun:
    """The same of supervised fine-tuning."""
    if not config.data:
        raise ConfigError("no data are given: name a file of conversations, as in `rllm sft chats.jsonl`")
    notes, done = list[str](), 0
    identity = sft_identity(config)
    if config.run_dir:
        check_run_dir(Path(config.run_dir), resumes=resume)
    if resume:
        done = _resumed(config, identity, notes, allow_changes=allow_changes)
    rehearsal = _rehearsal(config, plugins, notes)
    counts: dict[str, int | None] = {}
    estimate = total = None
    if rehearsal is not None:
        check_sft(config, rehearsal.capabilities)
        renderer = Renderer(rehearsal.model.tokenizer, context_tokens=rehearsal.model.context_tokens)
        train, held_out = conversations_of(config.data, renderer, held_out=config.held_out, seed=config.seed)
        steps, size = planned_sft_steps(config, len(train)), min(config.batch_size, len(train))
        read = sum(len(row.tokens) for c in train for row in c.rows)
        learnt = sum(c.n_targets for c in train)
        counts = {
            "conversations to train on": len(train),
            "held-out conversations": len(held_out),
            "steps": steps,
            "conversations of a step": size,
            "learnt tokens of a step, on average": round(learnt / len(train) * size),
        }
        workload = Workload(
            rows=size,
            prompts=size,
            prompt_tokens=round((read - learnt) / len(train)),
            completion_tokens=max(1, round(learnt / len(train))),
            samples=False,
        )
        estimate = _estimate(rehearsal, workload, notes)
        total = None if estimate is None else max(0, steps - done) * sum(estimate.seconds.values())
    backend = plugins.get("backend", config.backend)
    parts = {"data": config.data, f"backend {backend.name}": f"by {backend.plugin}"}
    return DryRun(*_settings(config, layers), parts, counts, estimate, total, tuple(notes))


def _resumed(
    config: TrainConfig | SftConfig, identity: Mapping[str, str], notes: list[str], *, allow_changes: bool
) -> int:
    """The steps that a resumed run has done. Raises ConfigError where it can't go on as it was."""
    folder = Path(config.run_dir or "")
    start = Checkpoints(folder / "checkpoints", config.checkpoint, notes.append).newest()
    before = identity if start is None else start.cursor.identity
    changes = check_same_run(folder, describe_settings(config), before, identity, allow_changes=allow_changes)
    done = 0 if start is None else start.cursor.steps
    notes += [*(f"changed: {change}" for change in changes), f"it goes on after step {done}"]
    return done


def _settings(config: AnyConfig, layers: Layers) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings as resolved, and where each comes from."""
    settings = describe_settings(config)
    given = [(source, dict(flat_settings(layer))) for source, layer in layers]
    sources: dict[str, str] = {}
    for name, _ in flat_settings(settings):
        # A setting may have been given as a whole or in part: `loggers`, `estimator_by_role.checker`.
        owners = [source for source, layer in given if any(f"{name}.".startswith(f"{key}.") for key in layer)]
        sources[name] = owners[-1] if owners else "default"
    return settings, sources


def _rehearsal(config: TrainConfig | SftConfig, plugins: PluginManager, notes: list[str]) -> Rehearsal | None:
    source = find_model(config.model)
    if source.kind == "builtin" and not source.path:
        notes.append(NO_WEIGHTS_YET.format(name=source.name))
        return None
    try:
        rehearsal = make_rehearsal(config, plugins, source)
    except BackendError as error:
        notes.append(f"what a step takes is not known: {error}")
        return None
    if rehearsal is None:
        notes.append(f"the backend {config.backend!r} can't tell what a step takes")
    return rehearsal


def _estimate(rehearsal: Rehearsal, workload: Workload, notes: list[str]) -> CostEstimate | None:
    try:
        return rehearsal.estimate(workload)
    except BackendError as error:
        notes.append(f"what a step takes is not known: {error}")
        return None


def _prompt_tokens(rehearsal: Rehearsal, tasks: Sequence[Task], notes: list[str]) -> int:
    """The mean of the questions, each as one message of the user: what an agent makes of it is not known."""
    renderer = Renderer(rehearsal.model.tokenizer, context_tokens=rehearsal.model.context_tokens)
    lengths = [len(renderer.render([{"role": "user", "content": task.prompt}])) for task in tasks[:RENDERED]]
    longest = max(lengths)
    if longest >= rehearsal.model.context_tokens:
        notes.append(f"a question has {longest} tokens, and the context is {rehearsal.model.context_tokens}")
    return max(1, round(sum(lengths) / len(lengths)))


def _parts(config: TrainConfig, plugins: PluginManager, parts: Parts) -> dict[str, str]:
    chosen = [("estimator", name) for name in {config.estimator, *config.estimator_by_role.values()}]
    chosen += [("loss", config.loss), ("backend", config.backend), *(("logger", name) for name in config.loggers)]
    found = {
        "tasks": parts.source.name,
        "agent": parts.flow.name,
        "evaluator": "the agent's own rewards"
        if parts.evaluator is None
        else getattr(parts.evaluator, "__name__", type(parts.evaluator).__name__),
    }
    return found | {f"{kind} {name}": f"by {plugins.get(kind, name).plugin}" for kind, name in sorted(chosen)}


def _total_s(config: TrainConfig, estimate: CostEstimate, steps: int | None) -> float | None:
    seconds = estimate.seconds
    of_step, validation = seconds["rollouts"] + seconds["updates"], seconds.get("validation", 0.0)
    training = float("inf") if steps is None else steps * of_step
    if config.time_limit_s is not None:
        training = min(training, config.time_limit_s + of_step)
    every = config.validation.every_steps
    between = 0 if every is None or steps is None else max(0, (steps - 1) // every)
    return training + (2 + between) * validation
