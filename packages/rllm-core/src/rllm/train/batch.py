"""A batch's episodes into what the optimizer steps take: groups, advantages, rows, weights. No effects.

episodes ──▶ groups ──▶ advantages ──▶ rows ──▶ weighed minibatches
"""

__all__ = ["Batch", "require_targets", "to_batch"]

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel

from rllm.advantage import ScoredGroup, estimate, make_groups, shuffle_rewards
from rllm.config import TrainConfig
from rllm.errors import NothingToTrainError
from rllm.plugins import PluginManager
from rllm.protocols import Registered
from rllm.types import Episode, Row, SamplingParams
from rllm.update import RowCounts, groups_to_rows, split_by_groups, weigh


@dataclass(frozen=True)
class Batch:
    """One batch, ready for the backend."""

    scored: tuple[ScoredGroup, ...]
    minibatches: tuple[tuple[Row, ...], ...]
    """Weighed; empty where no group has a signal."""
    metrics: Mapping[str, float]
    left_out: Mapping[str, int]
    """Why rollouts did not get into groups."""
    counts: RowCounts


def to_batch(
    episodes: Sequence[Episode],
    config: TrainConfig,
    plugins: PluginManager,
    *,
    sampling: SamplingParams,
    step: int,
) -> Batch:
    """Score and lay out one batch; ``step`` (from 0) seeds the permutation of a control run."""

    def estimator_for_role(role: str) -> tuple[Registered, BaseModel | None]:
        item = plugins.get("estimator", config.estimator_by_role.get(role, config.estimator))
        return item, config.plugins.get(item.name)

    grouping = make_groups(
        episodes,
        config.group_size,
        temperature=sampling.temperature,
        failure_reward=config.rollout.failure_reward,
        on_failure=config.rollout.on_failure,
        roles=config.train_roles,
    )
    groups = list(grouping.groups)
    if config.shuffle_rewards:
        groups = shuffle_rewards(groups, np.random.default_rng((config.seed, step)))
    scored = estimate(groups, estimator_for_role)
    rows = groups_to_rows(scored, episodes, temperature=sampling.temperature)
    minibatches = split_by_groups(rows.by_group, config.minibatches)
    weighed = tuple(
        tuple(
            weigh(
                part,
                config.loss_aggregation,
                max_tokens=sampling.max_tokens,
                n_rollouts=len(episodes) / config.minibatches,
            )
        )
        for part in minibatches
    )
    return Batch(
        scored=tuple(scored),
        minibatches=weighed,
        metrics=_metrics(scored, rows.counts, grouping.left_out, grouping.smaller),
        left_out=grouping.left_out,
        counts=rows.counts,
    )


def require_targets(batch: Batch, *, is_first: bool) -> None:
    """Raise NothingToTrainError where a run's first batch has no token that may be trained on, and say why.

    A batch whose groups merely have no signal is no error: it is counted, and the next may have one.
    """
    if not is_first or batch.counts.target_tokens > 0:
        return
    reasons = Counter(batch.left_out) + batch.counts.untrainable_steps
    found = ", ".join(f"{count} × {reason}" for reason, count in reasons.most_common()) or "no model calls"
    raise NothingToTrainError(
        f"no token of the first batch may be trained on: {found}. docs/troubleshooting.md says what each means"
    )


def _metrics(
    scored: Sequence[ScoredGroup], counts: RowCounts, left_out: Mapping[str, int], smaller: int
) -> dict[str, float]:
    skipped = Counter(item.skipped for item in scored if item.skipped is not None)
    metrics: dict[str, float] = {
        "groups/count": len(scored),
        "groups/skipped": sum(skipped.values()),
        "groups/no_signal": skipped["no_signal"],
        "groups/too_small": skipped["too_small"],
        "groups/incomplete": smaller,
        "trace/rows_per_trajectory": counts.rows / max(1, counts.trajectories),
        "trace/prefix_breaks": sum(counts.prefix_breaks.values()),
        "trace/target_tokens": counts.target_tokens,
        "trace/untrainable_steps": sum(counts.untrainable_steps.values()),
    }
    metrics |= {f"trace/prefix_breaks/{reason}": n for reason, n in sorted(counts.prefix_breaks.items())}
    metrics |= {f"trace/untrainable/{reason}": n for reason, n in sorted(counts.untrainable_steps.items())}
    metrics |= {f"left_out/{reason}": n for reason, n in sorted(left_out.items())}
    return metrics
