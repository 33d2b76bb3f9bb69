"""How many tokens the trainer takes at a time, from what one token keeps for the backward and the memory there is."""

__all__ = ["ENOUGH_TOKENS", "MICRO_BATCH_TOKENS", "Room", "measure_room", "measure_saved", "room_for"]

import logging
from dataclasses import dataclass

import numpy as np

from rllm.backends.local.machine import saved_bytes, total_memory
from rllm.backends.local.policy import Policy
from rllm.backends.local.settings import TinkerSettings
from rllm.update.packing import forest_of

log = logging.getLogger("rllm.backends")

MICRO_BATCH_TOKENS = 2048
"""At most so many, where what the rows share is worth it."""
ENOUGH_TOKENS = 384
"""More at a time is not faster: the matrix products are as fast as they get."""

PROBE_TOKENS = 64

BYTES_PER_WEIGHT = 12
"""A trained float32 weight's gradient and AdamW's two moments."""


@dataclass(frozen=True)
class Room:
    """What fits."""

    micro_batch_tokens: int
    checkpoints_above: float
    """Forwards of more tokens compute their layers again in the backward."""

    def needs_checkpoints(self, n_tokens: int) -> bool:
        """Whether a forward of so many tokens must not keep all that its backward needs."""
        return n_tokens > self.checkpoints_above


def measure_room(policy: Policy, settings: TinkerSettings) -> Room:
    """From one small forward. The same machine, model and settings give the same, whatever else is in memory."""
    return room_for(
        settings,
        per_token=measure_saved(policy, settings),
        memory=total_memory(policy.device),
        weights=sum(p.nbytes for p in policy.network.parameters()),
        trained=sum(p.numel() for p in policy.trainable()),
    )


def room_for(settings: TinkerSettings, *, per_token: int, memory: int, weights: int, trained: int) -> Room:
    """Where a token keeps ``per_token`` bytes, and the weights take ``weights``; ``trained`` of them are trained."""
    fits = max(memory // 2 - weights - trained * BYTES_PER_WEIGHT, memory // 8) // per_token
    tokens = settings.micro_batch_tokens or min(MICRO_BATCH_TOKENS, max(1, fits))
    log.info(
        "micro-batches of %d tokens; a token keeps %.2f MiB for the backward, so %d fit in half of %.1f GiB",
        *(tokens, per_token / 2**20, fits, memory / 2**30),
    )
    above = {True: 0.0, False: float("inf"), None: float(fits)}[settings.gradient_checkpointing]
    return Room(tokens, above)


def measure_saved(policy: Policy, settings: TinkerSettings) -> int:
    """Bytes that a token keeps for the backward, by one small forward."""
    forest = forest_of([np.arange(PROBE_TOKENS, dtype=np.int32) % policy.head.weight.shape[0]])
    with policy.training(checkpoints=settings.gradient_checkpointing is True):
        # The rounded weights of bf16 are buffers.
        weights = [*policy.network.parameters(), *policy.network.buffers()]
        kept = saved_bytes(lambda: policy.body.run_forest(forest), weights)
    return max(1, kept // PROBE_TOKENS)
