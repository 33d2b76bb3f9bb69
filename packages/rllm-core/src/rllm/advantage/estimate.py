"""Groups into advantages: each role's estimator is called once for a batch, and what it returns is checked.

    groups ──▶ estimator of the role ──▶ scored groups, those without signal marked

A stranger's estimator can't do harm unseen: an error, a missing advantage or a NaN names it and its plugin.
"""

__all__ = ["EstimatorForRole", "ScoredGroup", "Skip", "estimate", "shuffle_rewards", "smallest_group"]

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from rllm.errors import PluginError
from rllm.protocols import Registered
from rllm.types import Group

EstimatorForRole = Callable[[str], tuple[Registered, BaseModel | None]]
"""From a role to the registered estimator of its groups, and that estimator's settings."""

Skip = Literal["too_small", "no_signal"]


@dataclass(frozen=True)
class ScoredGroup:
    """A group with its advantages."""

    group: Group
    advantages_G: NDArray[np.float64]
    """Per rollout; zeros where the group is skipped."""
    skipped: Skip | None = None
    """Why it is not trained on. ``too_small``: fewer rollouts than the estimator compares (a group of one, mostly);
    ``no_signal``: every advantage is exactly 0."""


def smallest_group(estimator: Registered) -> int:
    """The fewest rollouts that the estimator makes something of, as registered by ``min_group``; else 2.

    An estimator that needs no siblings says so by ``min_group=1``. One that says nothing is never given a group of
    one, for the usual formulas turn its raw reward into an advantage, or into NaN.
    """
    return int(estimator.extra.get("min_group", 2))


def estimate(groups: Sequence[Group], estimator_for_role: EstimatorForRole) -> list[ScoredGroup]:
    """The advantages of a batch's groups, in the order given. Nothing normalises them after the estimator.

    An estimator sees the rewards of all groups of its role that are large enough, those with equal rewards included
    (they belong to a batch's baseline). Raises PluginError, naming the estimator and its plugin, where it raises or
    returns anything but one finite advantage for each rollout.
    """
    scored: dict[int, ScoredGroup] = {}
    for role in sorted({group.role for group in groups}):
        estimator, settings = estimator_for_role(role)
        least = smallest_group(estimator)
        indices = [i for i, group in enumerate(groups) if group.role == role]
        large = [i for i in indices if len(groups[i]) >= least]
        for i in set(indices) - set(large):
            scored[i] = ScoredGroup(groups[i], np.zeros(len(groups[i])), "too_small")
        for i, advantages_G in zip(large, _call(estimator, settings, [groups[i] for i in large]), strict=True):
            scored[i] = ScoredGroup(groups[i], advantages_G, None if advantages_G.any() else "no_signal")
    return [scored[i] for i in range(len(groups))]


def shuffle_rewards(groups: Sequence[Group], rng: np.random.Generator) -> list[Group]:
    """The same groups with their rewards permuted at random within each: a control, from which nothing can be learnt.

    The mean and spread of every group stay as they are, and only the link between a rollout and its reward is cut.
    """
    return [dataclasses.replace(group, rewards_G=rng.permutation(group.rewards_G)) for group in groups]


def _call(estimator: Registered, settings: BaseModel | None, groups: Sequence[Group]) -> list[NDArray[np.float64]]:
    where = f"the estimator {estimator.name!r} of plugin {estimator.plugin!r}"
    rewards = [group.rewards_G.copy() for group in groups]
    if not rewards:
        return []
    try:
        returned = estimator.value(rewards) if settings is None else estimator.value(rewards, settings)
        advantages = [np.array(a, dtype=np.float64) for a in returned]
    except Exception as error:
        raise PluginError(f"{where} failed on {len(rewards)} groups: {type(error).__name__}: {error}") from error
    if len(advantages) != len(groups):
        raise PluginError(f"{where} returned {len(advantages)} arrays for {len(groups)} groups; return one for each")
    for group, advantages_G in zip(groups, advantages, strict=True):
        of = f"task {group.task_id!r}, role {group.role!r}, rewards {group.rewards_G.tolist()}"
        if advantages_G.shape != group.rewards_G.shape:
            raise PluginError(
                f"{where} returned an array of shape {advantages_G.shape} for {len(group)} rollouts ({of}); "
                "return one advantage for each"
            )
        if not np.isfinite(advantages_G).all():
            raise PluginError(f"{where} returned {advantages_G.tolist()} ({of}); advantages must be finite")
    return advantages
