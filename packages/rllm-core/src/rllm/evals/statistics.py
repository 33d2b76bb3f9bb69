"""What an evaluation says, as pure functions of the graded samples."""

__all__ = ["Summary", "pass_at_k", "standard_error", "summarise"]

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rllm.types import Episode


@dataclass(frozen=True)
class Summary:
    """An evaluation in numbers. Every mean is over tasks of the mean over a task's samples."""

    n_tasks: int
    n_samples: int
    reward: float
    reward_se: float
    """Standard error, clustered by task (Miller 2024, "Adding Error Bars to Evals", section 2.2)."""
    accuracy: float
    accuracy_se: float
    pass_at: Mapping[int, float]
    """k → the chance that one of k samples is correct."""
    n_failed: int
    """Samples that could not be graded; they count as reward 0 and incorrect in the figures above."""
    reward_graded: float
    """The mean reward over the graded samples alone; NaN where there are none."""
    failures: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        """As plain data for a JSON file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Summary":
        """What ``as_dict`` gave, also where JSON has made strings of the numbers k."""
        fields: dict[str, Any] = {**data, "pass_at": {int(k): v for k, v in data["pass_at"].items()}}
        return cls(**fields)


def summarise(episodes: Sequence[Episode]) -> Summary:
    """The summary of an evaluation's episodes. Raises ValueError where there are none."""
    if not episodes:
        raise ValueError("there are no episodes to summarise")
    rewards: dict[str, list[float]] = {}
    correct: dict[str, list[bool]] = {}
    failures: dict[str, int] = {}
    graded: list[float] = []
    for episode in episodes:
        value, is_correct = graded_value(episode)
        rewards.setdefault(episode.task.id, []).append(0.0 if value is None else value)
        correct.setdefault(episode.task.id, []).append(is_correct)
        if value is not None:
            graded.append(value)
        else:
            kind = episode.failure.kind if episode.failure else "no_grade"
            failures[kind] = failures.get(kind, 0) + 1
    accuracies = {task: [float(c) for c in values] for task, values in correct.items()}
    fewest = min(len(v) for v in correct.values())
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= fewest]
    return Summary(
        n_tasks=len(rewards),
        n_samples=len(episodes),
        reward=_mean_of_means(rewards),
        reward_se=standard_error(rewards),
        accuracy=_mean_of_means(accuracies),
        accuracy_se=standard_error(accuracies),
        pass_at={k: float(np.mean([pass_at_k(len(v), sum(v), k) for v in correct.values()])) for k in ks},
        n_failed=sum(failures.values()),
        reward_graded=float(np.mean(graded)) if graded else math.nan,
        failures=failures,
    )


def graded_value(episode: Episode) -> tuple[float | None, bool]:
    """An episode's reward (None where it has no grade) and whether it is correct.

    Where the agent itself gave its trajectories rewards, it is their mean.
    """
    if episode.reward is not None:
        return episode.reward.value, episode.reward.correct
    own = [t.reward for t in episode.trajectories if t.reward is not None]
    if not own:
        return None, False
    value = float(np.mean(own))
    return value, value >= 1.0


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that k of n samples, c of them correct, hold a correct one: 1 − C(n−c, k) / C(n, k).

    Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} samples, there are {n}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def standard_error(values_by_task: Mapping[str, Sequence[float]]) -> float:
    """Of the mean over tasks, samples of one task being dependent: std of the task means / √tasks; NaN for one."""
    means = np.array([np.mean(v) for v in values_by_task.values()])
    if len(means) < 2:
        return math.nan
    return float(means.std(ddof=1) / math.sqrt(len(means)))


def _mean_of_means(values_by_task: Mapping[str, Sequence[float]]) -> float:
    return float(np.mean([np.mean(v) for v in values_by_task.values()]))
