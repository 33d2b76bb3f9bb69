"""A batch's rows into the minibatches of its optimizer steps: by whole groups, in an order of content."""

__all__ = ["split_by_groups"]

from collections.abc import Sequence

import numpy as np

from rllm.types import Row


def split_by_groups(by_group: Sequence[Sequence[Row]], minibatches: int) -> list[list[Row]]:
    """Split groups into ``minibatches`` runs of neighbours whose numbers of groups differ by one at most.

    Groups without rows (skipped ones) are left out first. Fewer groups than minibatches give one minibatch for each
    group: none is empty, and none is padded. Within a minibatch rows stand by task, sample and role, then by their
    tokens: never by the order in which they arrived.
    """
    filled = [rows for rows in by_group if rows]
    parts = np.array_split(np.arange(len(filled)), min(minibatches, len(filled))) if filled else []
    return [sorted((row for g in part for row in filled[g]), key=_order) for part in parts]


def _order(row: Row) -> tuple[str, int, str, bytes, bytes, bytes]:
    # Big-endian bytes sort as the token ids do; the other two tell apart rows of the same tokens.
    return (
        row.meta.task_id,
        row.meta.sample,
        row.meta.role,
        row.tokens.astype(">i4").tobytes(),
        row.mask.tobytes(),
        row.logprobs.tobytes(),
    )
