"""From trajectories to what an optimizer step takes: rows, their weights, minibatches, losses. Pure functions.

Light on purpose: nothing here imports torch when it is loaded.
"""

__all__ = ["BatchRows", "RowCounts", "groups_to_rows", "split_by_groups", "trajectory_to_rows", "weigh"]

from rllm.update.aggregation import weigh
from rllm.update.batches import BatchRows, groups_to_rows
from rllm.update.minibatches import split_by_groups
from rllm.update.rows import RowCounts, trajectory_to_rows
