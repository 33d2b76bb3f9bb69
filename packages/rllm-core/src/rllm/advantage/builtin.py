"""The built-in estimators as a plugin of the core."""

from __future__ import annotations

__all__ = ["rllm_register_estimators"]

from typing import TYPE_CHECKING

from rllm.advantage.estimators import GrpoSettings, ReinforceSettings, grpo, reinforce, rloo
from rllm.hookspecs import hookimpl

if TYPE_CHECKING:
    from rllm.plugins import Register


@hookimpl
def rllm_register_estimators(register: Register) -> None:
    register(
        "grpo",
        grpo,
        settings=GrpoSettings,
        min_group=2,
        summary="reward minus the group's mean, over its standard deviation (std=false: Dr. GRPO)",
    )
    register("rloo", rloo, min_group=2, summary="reward minus the mean of the group's other rewards")
    register(
        "reinforce",
        reinforce,
        settings=ReinforceSettings,
        min_group=1,
        summary="reward minus the batch's mean (baseline=none: the reward itself)",
    )
