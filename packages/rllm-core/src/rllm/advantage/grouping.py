"""Graded episodes into groups: the rollouts of one task, seen by one role, with one reward each.

    episodes ──▶ groups ──▶ advantages

Groups are keyed by task and role and nothing else (never by a trajectory's name or id, which would make groups of
one), and what is left out of them is counted by its reason.
"""

__all__ = ["GroupingResult", "make_groups"]

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rllm.advantage.filters import untrainable_reason
from rllm.config import OnFailure
from rllm.errors import EvaluatorError, TaskError
from rllm.types import Episode, Group, Trajectory

BY_THE_RUN = OnFailure()


@dataclass(frozen=True)
class GroupingResult:
    """The groups of a batch, and what did not get into them."""

    groups: tuple[Group, ...]
    """By task id, then role."""
    left_out: Mapping[str, int]
    """Reason → how many places in groups it cost: one for each role of a rollout, one for a rollout without any.

    A kind of failure (``timeout``, ``evaluator_error``, …): the rollout was dropped. ``no_reward``: the evaluator gave
    none, or not for all trajectories of the role. ``not_finite``: NaN or infinity. ``no_target``: there is no sampled
    token of the role, and ``no_target: …``: none that may be trained on, with the ``untrainable_reason`` of most of its
    steps. ``role_not_trained``: the role is not among ``train_roles``.
    """

    @property
    def smaller(self) -> int:
        """How many groups have fewer members than were asked for."""
        return sum(len(group) < group.wanted for group in self.groups)


@dataclass(frozen=True)
class _Member:
    sample: int
    trajectories: tuple[Trajectory, ...]
    reward: float | None
    """None where a failed rollout has no grade."""


def make_groups(
    episodes: Sequence[Episode],
    wanted: int,
    *,
    temperature: float,
    failure_reward: float = 0.0,
    on_failure: OnFailure = BY_THE_RUN,
    roles: Collection[str] | None = None,
) -> GroupingResult:
    """One group for each task and role that has a rollout to train on; ``wanted`` rollouts of a task were asked for.

    Each rollout counts once: its reward is the mean of the rewards of its trajectories of the role, and a
    trajectory's is its own ``reward``, else the episode's for the role. A rollout by the policy's doing without a
    grade gets ``failure_reward``, but never more than the lowest grade of its group: to fail must not beat to try. A
    rollout that has no token to train on is left out, for it would move the others' baseline and learn nothing
    itself; ``temperature`` (the run's) decides that with ``untrainable_reason``. ``roles`` are those that are trained;
    None trains all. Members stand in the order of their sample numbers, whatever order they ended in.

    Raises TaskError where two episodes are the same sample of a task, EvaluatorError where a reward has ``by_step``.
    """
    left_out: Counter[str] = Counter()
    members: dict[tuple[str, str], list[_Member]] = {}
    for episode in _ordered(episodes):
        _refuse_by_step(episode)
        by_role: dict[str, list[Trajectory]] = {}
        for trajectory in sorted(episode.trajectories, key=_first_call):
            by_role.setdefault(trajectory.role, []).append(trajectory)
        dropped = _why_dropped(episode, on_failure)
        if dropped is not None or not by_role:
            left_out[dropped or "no_target"] += max(1, len(by_role))
            continue
        for role, trajectories in by_role.items():
            if roles is not None and role not in roles:
                left_out["role_not_trained"] += 1
                continue
            reward = _mean_reward(episode, trajectories)
            reason = _why_left_out(episode, trajectories, reward, temperature)
            if reason is not None:
                left_out[reason] += 1
                continue
            member = _Member(episode.sample, tuple(trajectories), reward)
            members.setdefault((episode.task.id, role), []).append(member)
    groups = tuple(_group(*key, members[key], wanted, failure_reward) for key in sorted(members))
    return GroupingResult(groups, dict(sorted(left_out.items())))


def _first_call(trajectory: Trajectory) -> tuple[int, int]:
    return min(((step.index, step.choice) for step in trajectory.steps), default=(0, 0))


def _ordered(episodes: Sequence[Episode]) -> list[Episode]:
    seen: set[tuple[str, int]] = set()
    for episode in episodes:
        key = (episode.task.id, episode.sample)
        if key in seen:
            raise TaskError(
                f"two rollouts of task {key[0]!r} have the sample number {key[1]}: a batch holds the task twice, or "
                "two tasks share its id. Give every task of a source an id of its own"
            )
        seen.add(key)
    return sorted(episodes, key=lambda e: (e.task.id, e.sample))


def _refuse_by_step(episode: Episode) -> None:
    if episode.reward is not None and episode.reward.by_step:
        call, value = next(iter(episode.reward.by_step.items()))
        raise EvaluatorError(
            f"the evaluator gave task {episode.task.id!r} a reward by step ({value:g} for call {call!r}), and no "
            "estimator credits single calls. Add what the call is worth to Reward.value, or put it into "
            "Reward.signals to have it logged only"
        )


def _why_dropped(episode: Episode, on_failure: OnFailure) -> str | None:
    failure = episode.failure
    if failure is None:
        return None
    has_completed_call = any(step.status == "ok" for t in episode.trajectories for step in t.steps)
    if failure.kind == "evaluator_error" or not has_completed_call or getattr(on_failure, failure.kind) == "drop":
        return failure.kind
    return None


def _mean_reward(episode: Episode, trajectories: Sequence[Trajectory]) -> float | None:
    rewards: list[float] = []
    for trajectory in trajectories:
        if trajectory.reward is not None:
            rewards.append(trajectory.reward)
        elif episode.reward is not None:
            rewards.append(episode.reward.for_role(trajectory.role))
        else:
            return None
    return float(np.mean(rewards)) if all(map(math.isfinite, rewards)) else math.nan


def _why_left_out(
    episode: Episode, trajectories: Sequence[Trajectory], reward: float | None, temperature: float
) -> str | None:
    reasons = [untrainable_reason(step, temperature) for t in trajectories for step in t.steps]
    if not reasons:
        return "no_target"
    if None not in reasons:
        return f"no_target: {Counter(reasons).most_common(1)[0][0]}"
    if reward is None:
        return None if episode.failure is not None else "no_reward"
    return None if math.isfinite(reward) else "not_finite"


def _group(task_id: str, role: str, members: Sequence[_Member], wanted: int, failure_reward: float) -> Group:
    graded = [m.reward for m in members if m.reward is not None]
    for_failures = min([failure_reward, *graded])
    rewards = [for_failures if m.reward is None else m.reward for m in members]
    return Group(
        task_id=task_id,
        role=role,
        members=tuple(m.trajectories for m in members),
        rewards_G=np.array(rewards, dtype=np.float64),
        wanted=wanted,
        samples=tuple(m.sample for m in members),
    )
