"""The weight of each target in the loss Σ mask × loss: the one place where an update is normalised.

A backend only sums, so that the gradient of a minibatch is the same however it is split into micro-batches. Below,
R is the number of the minibatch's rows, n_i the targets of row i, and l_it the loss of its target t.
"""

__all__ = ["Aggregation", "weigh"]

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from rllm.types import Row

Aggregation = Literal["token_mean", "sequence_mean", "constant", "sum"]


def weigh(rows: Sequence[Row], aggregation: Aggregation, *, max_tokens: int, n_rollouts: float) -> list[Row]:
    """The rows of one minibatch with their masks (0 or 1 as built) turned into weights.

    ``token_mean``: Σ_it l_it / Σ_i n_i. Every token weighs the same; DAPO (Yu et al. 2025, arXiv:2503.14476), eq. 12.

    ``sequence_mean``: 1/R Σ_i 1/n_i Σ_t l_it. Every row weighs the same, so a token of a short row weighs more; GRPO
    (Shao et al. 2024, arXiv:2402.03300), eq. 3. A conversation whose prefix broke is several rows.

    ``constant``: Σ_it l_it / (n_rollouts × max_tokens). Neither a row's length nor its neighbours change its weight;
    Dr. GRPO (Liu et al. 2025, arXiv:2503.20783), section 3.2, with ``grpo.std=false``. ``n_rollouts`` is the number
    asked for in the batch divided by its number of minibatches, and ``max_tokens`` is ``sampling.max_tokens``: groups
    that were skipped and rollouts that were dropped count, so that the step's size does not depend on how many there
    are.

    ``sum``: Σ_it l_it.

    The means count every row that is given and every target in it, those of truncated completions too, and no skipped
    group, for it has no rows here (as in DAPO, which filters such groups before the mean is taken). Raises ValueError
    where a row has been weighed before.
    """
    for row in rows:
        if not np.isin(row.mask, (0.0, 1.0)).all():
            raise ValueError(f"the row of task {row.meta.task_id!r}, sample {row.meta.sample} has been weighed before")
    targets = [row.n_targets for row in rows]
    if aggregation == "token_mean":
        weights = [1.0 / max(1, sum(targets))] * len(rows)
    elif aggregation == "sequence_mean":
        weights = [1.0 / (len(rows) * max(1, n)) for n in targets]
    elif aggregation == "constant":
        weights = [1.0 / (n_rollouts * max_tokens)] * len(rows)
    else:
        weights = [1.0] * len(rows)
    return [dataclasses.replace(r, mask=(r.mask * w).astype(np.float32)) for r, w in zip(rows, weights, strict=True)]
