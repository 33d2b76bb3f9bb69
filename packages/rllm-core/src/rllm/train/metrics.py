"""A batch in numbers: what goes into ``metrics.jsonl`` and onto the display. Names are ``area/what``."""

__all__ = ["UpdateReport", "regrading_metrics", "rollout_metrics", "task_metrics", "update_metrics"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rllm.evals.statistics import graded_value, pass_at_k
from rllm.protocols import StepResult
from rllm.rollouts import RunnerStats
from rllm.tasks.split import question_of
from rllm.types import Episode, Row, Task

Metrics = dict[str, float]


@dataclass(frozen=True)
class UpdateReport:
    """One batch, rolled out and trained on."""

    step: int
    """From 1."""
    version: int
    """Of the policy after the update."""
    metrics: Mapping[str, float]


def task_metrics(train: Sequence[Task], held_out: Sequence[Task]) -> Metrics:
    """How many questions there are, and how many stand on both sides but for case, spaces and punctuation."""
    asked = {question_of(task) for task in train}
    shared = sum(question_of(task) in asked for task in held_out if task.prompt)
    return {"tasks/train": len(train), "tasks/held_out": len(held_out), "tasks/shared": shared}


def regrading_metrics(stats: RunnerStats) -> Metrics:
    """Of the rollouts that were graded twice, where some were."""
    return {"evaluator/regraded": stats.regraded, "evaluator/changed": stats.changed} if stats.regraded else {}


def rollout_metrics(episodes: Sequence[Episode], seconds: float, *, group_size: int) -> Metrics:
    """What the rollouts were: rewards, correctness, lengths, failures, speed."""
    by_task: dict[str, list[bool]] = {}
    values: list[float] = []
    for episode in episodes:
        value, is_correct = graded_value(episode)
        if value is not None:
            values.append(value)
            by_task.setdefault(episode.task.id, []).append(is_correct)
    steps = [s for e in episodes for t in e.trajectories for s in t.steps]
    lengths = [len(s.completion_ids) for s in steps]
    sampled = sum(lengths)
    metrics: Metrics = {
        "rollout/count": len(episodes),
        "rollout/failed": sum(e.failure is not None for e in episodes),
        "rollout/retries": sum(e.attempts - 1 for e in episodes),
        "rollout/calls_mean": len(steps) / max(1, len(episodes)),
        "rollout/completion_tokens_mean": float(np.mean(lengths)) if lengths else 0.0,
        "rollout/truncated": sum(s.finish_reason == "length" for s in steps) / max(1, len(steps)),
        "time/rollout_s": seconds,
        "time/sampled_tokens_per_s": sampled / seconds if seconds > 0 else 0.0,
    }
    if values:
        metrics["reward/mean"] = float(np.mean(values))
        metrics["reward/std"] = float(np.std(values))
        metrics["reward/correct"] = float(np.mean([c for g in by_task.values() for c in g]))
        whole = [pass_at_k(len(g), sum(g), group_size) for g in by_task.values() if len(g) >= group_size]
        if whole:
            metrics[f"reward/pass@{group_size}"] = float(np.mean(whole))
    correlation = _length_correlation(episodes)
    if correlation is not None:
        metrics["reward/length_correlation"] = correlation
    for kind in sorted({e.failure.kind for e in episodes if e.failure is not None}):
        metrics[f"failure/{kind}"] = sum(e.failure is not None and e.failure.kind == kind for e in episodes)
    for name in sorted({n for e in episodes if e.reward for n in e.reward.signals}):
        parts = [e.reward.signals[name] for e in episodes if e.reward and name in e.reward.signals]
        metrics[f"signal/{name}"] = float(np.mean(parts))
    return metrics


def _length_correlation(episodes: Sequence[Episode]) -> float | None:
    """Pearson's, of rewards and sampled tokens, each less its task's mean; None where either does not vary."""
    by_task: dict[str, list[tuple[float, int]]] = {}
    for episode in episodes:
        value, _ = graded_value(episode)
        if value is not None:
            tokens = sum(len(step.completion_ids) for step in episode.steps)
            by_task.setdefault(episode.task.id, []).append((value, tokens))
    centred = [np.array(pairs, np.float64) - np.mean(pairs, axis=0) for pairs in by_task.values()]
    if not centred:
        return None
    rewards, lengths = np.concatenate(centred).T
    scale = float(np.sqrt((rewards @ rewards) * (lengths @ lengths)))
    return float(rewards @ lengths) / scale if scale > 1e-9 else None


def update_metrics(results: Sequence[tuple[StepResult, Sequence[Row]]], seconds: float) -> Metrics:
    """What the optimizer steps did, each step's token means weighted by its targets."""
    if not results:
        return {"update/optimizer_steps": 0, "time/update_s": seconds}
    weights = np.array([sum(r.n_targets for r in rows) for _, rows in results], dtype=np.float64)
    names = sorted({n for result, _ in results for n in result.metrics})
    metrics: Metrics = {}
    for name in names:
        values = [result.metrics.get(name, 0.0) for result, _ in results]
        is_peak = name.endswith("_max")
        metrics[f"update/{name}"] = float(max(values)) if is_peak else float(np.average(values, weights=weights))
    metrics["update/loss"] = float(sum(result.loss for result, _ in results))
    metrics["update/grad_norm"] = float(np.mean([result.grad_norm for result, _ in results]))
    metrics["update/optimizer_steps"] = len(results)
    metrics["update/target_tokens"] = float(weights.sum())
    metrics["time/update_s"] = seconds
    return metrics
