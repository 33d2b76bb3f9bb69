"""The built-in losses as a plugin of the core."""

from __future__ import annotations

__all__ = ["rllm_register_losses"]

from typing import TYPE_CHECKING

from rllm.hookspecs import hookimpl
from rllm.update.losses import PpoSettings, cross_entropy, importance_sampling, ppo

if TYPE_CHECKING:
    from rllm.plugins import Register


@hookimpl
def rllm_register_losses(register: Register) -> None:
    register("importance_sampling", importance_sampling, summary="−ratio × advantage: REINFORCE while on-policy")
    register("cross_entropy", cross_entropy, summary="the likelihood of given tokens, for rllm sft", uses_rewards=False)
    register("ppo", ppo, settings=PpoSettings, summary="the clipped ratio; clip_high may be above clip_low")
