"""The rows of a whole batch: every scored group's, with what was counted on the way."""

__all__ = ["BatchRows", "groups_to_rows"]

from collections.abc import Sequence
from dataclasses import dataclass

from rllm.advantage import ScoredGroup
from rllm.trace import steps_by_key
from rllm.types import Episode, Row
from rllm.update.rows import RowCounts, trajectory_to_rows


@dataclass(frozen=True)
class BatchRows:
    """The rows of a batch's groups."""

    by_group: tuple[tuple[Row, ...], ...]
    """As the groups were given; empty for those that are skipped."""
    counts: RowCounts
    """Of every group's trajectories, the skipped ones included: they say how the agent uses the model, and that does
    not depend on how well it does."""


def groups_to_rows(scored: Sequence[ScoredGroup], episodes: Sequence[Episode], *, temperature: float) -> BatchRows:
    """The rows of each group, every target with its rollout's advantage; none of a group that is skipped.

    ``episodes`` are those that the groups were made from. Each trajectory of a rollout gets the rollout's advantage.
    """
    steps = {(e.task.id, e.sample): steps_by_key(e.steps) for e in episodes}
    counts = RowCounts()
    by_group: list[tuple[Row, ...]] = []
    for item in scored:
        group = item.group
        rows: list[Row] = []
        for sample, trajectories, advantage in zip(group.samples, group.members, item.advantages_G, strict=True):
            for trajectory in trajectories:
                built, counted = trajectory_to_rows(
                    trajectory,
                    float(advantage),
                    steps[group.task_id, sample],
                    temperature=temperature,
                    task_id=group.task_id,
                    sample=sample,
                )
                rows += built
                counts += counted
        by_group.append(tuple(rows) if item.skipped is None else ())
    return BatchRows(tuple(by_group), counts)
