"""The built-in advantage estimators: from the rewards of a role's groups to one advantage for each rollout.

Each takes the finite rewards of every group of one role of a batch, ``list of float64[G]``, and returns the same
shapes. Nothing after them normalises again. Equal rewards give advantages of exactly 0 wherever the reward is
compared with a mean, so that a group without signal is told from one with little.
"""

__all__ = ["GrpoSettings", "ReinforceSettings", "grpo", "reinforce", "rloo"]

from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rllm.config import Settings

Floats = NDArray[np.float64]


class GrpoSettings(Settings):
    """Settings of ``grpo``."""

    std: bool = True
    """Whether to divide by the group's standard deviation; false is the advantage of Dr. GRPO."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the standard deviation, in units of the reward."""


class ReinforceSettings(Settings):
    """Settings of ``reinforce``."""

    baseline: Literal["none", "batch"] = "batch"
    """What is subtracted from a reward: nothing, or the mean over all rollouts of the role in the batch."""
    std: bool = False
    """Whether to divide by the batch's standard deviation too, as REINFORCE++ does."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the standard deviation, in units of the reward."""

    @model_validator(mode="after")
    def _std_needs_a_baseline(self) -> Self:
        if self.std and self.baseline == "none":
            raise ValueError("std divides by the spread around the batch's mean; set baseline=batch, or std=false")
        return self


def grpo(rewards: Sequence[Floats], settings: GrpoSettings) -> list[Floats]:
    """A_i = (r_i − mean(r)) / (std(r) + eps) over the group; without ``std``, A_i = r_i − mean(r).

    DeepSeekMath (Shao et al. 2024, arXiv:2402.03300), section 4.1.2, and without std Dr. GRPO (Liu et al. 2025,
    arXiv:2503.20783), section 3.2. The paper leaves open which deviation is meant; here it is that of a sample
    (divided by G − 1), as in verl (eps 1e-6) and TRL (eps 1e-4). A group of one gets 0.
    """
    centred = [_centred(r) for r in rewards]
    if not settings.std:
        return centred
    return [c / (_sample_std(c) + settings.eps) for c in centred]


def rloo(rewards: Sequence[Floats]) -> list[Floats]:
    """A_i = r_i − mean of the others' rewards = G/(G−1) · (r_i − mean(r)).

    Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free"; Ahmadian et al. 2024 (arXiv:2402.14740).
    A group of one has no others to compare with and gets 0.
    """
    return [_centred(r) * (len(r) / max(1, len(r) - 1)) for r in rewards]


def reinforce(rewards: Sequence[Floats], settings: ReinforceSettings) -> list[Floats]:
    """A_i = r_i − b, Williams 1992; b is 0, or the mean over all rollouts of the role in the batch.

    With ``std``, A_i = (r_i − b) / (std + eps) with the batch's sample standard deviation (REINFORCE++, Hu et al.
    2025, arXiv:2501.03262). A group of one is as good as any other here.
    """
    if settings.baseline == "none" or not rewards:
        return [r.copy() for r in rewards]
    centred = _centred(np.concatenate(rewards))
    if settings.std:
        centred = centred / (_sample_std(centred) + settings.eps)
    return np.split(centred, np.cumsum([len(r) for r in rewards])[:-1])


def _centred(rewards: Floats) -> Floats:
    """r − mean(r), exactly 0 where all are equal up to rounding (1e-12 of the largest).

    Exactly, for Adam makes a full-sized step of a gradient that is nothing but rounding errors: 0.1 + 0.2 is not 0.3,
    and the mean of three times 0.1 is not 0.1.
    """
    offsets = rewards - rewards[0]
    if np.abs(offsets).max() <= 1e-12 * np.abs(rewards).max():
        return np.zeros_like(rewards)
    return offsets - offsets.mean()


def _sample_std(centred: Floats) -> float:
    """The standard deviation with G − 1 below; 0 for a single value."""
    return float(np.sqrt(np.square(centred).sum() / max(1, len(centred) - 1)))
