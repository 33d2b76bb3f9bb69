"""Given token sequences as rows: every target weighs 1 until it is weighed, and was drawn by nobody."""

__all__ = ["given_row"]

import numpy as np

from rllm.rendering import Given
from rllm.types import Row, RowMeta


def given_row(given: Given, name: str) -> Row:
    """A row for ``cross_entropy``; ``name`` says in messages where it comes from."""
    tokens = np.array(given.tokens, np.int32)
    mask = np.array(given.is_target, np.float32)
    zeros = np.zeros(len(tokens), np.float32)
    return Row(tokens, mask, zeros, zeros, np.where(mask > 0, 0, -1).astype(np.int32), meta=RowMeta(task_id=name))
