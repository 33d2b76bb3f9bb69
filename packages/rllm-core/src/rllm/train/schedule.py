"""Which tasks each batch takes, how many batches there are, and their learning rates: pure functions of the seed."""

__all__ = ["learning_rate", "planned_sft_steps", "planned_steps", "task_batches"]

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from rllm.config import OptimizerConfig, SftConfig, TrainConfig

T = TypeVar("T")


def planned_steps(config: TrainConfig, n_tasks: int) -> int | None:
    """How many batches the run will take; None where only the clock ends it.

    ``steps`` where given, else ``epochs`` passes over the tasks, else (with no time limit) one pass.
    """
    if config.steps is not None:
        return config.steps
    if config.epochs is None and config.time_limit_s is not None:
        return None
    batches_of_a_pass = math.ceil(n_tasks / config.batch_tasks)
    return max(1, math.ceil((config.epochs or 1.0) * batches_of_a_pass))


def planned_sft_steps(config: SftConfig, n_conversations: int) -> int:
    """``steps`` where given, else ``epochs`` passes over the conversations."""
    if config.steps is not None:
        return config.steps
    return max(1, math.ceil(config.epochs * math.ceil(n_conversations / config.batch_size)))


def task_batches(tasks: Sequence[T], batch_tasks: int, seed: int) -> Iterator[list[T]]:
    """Batches without end: each pass takes every task (or conversation) once, in an order of its own; its last batch
    may be smaller."""
    epoch = 0
    while True:
        order = np.random.default_rng((seed, epoch)).permutation(len(tasks))
        for start in range(0, len(tasks), batch_tasks):
            yield [tasks[i] for i in order[start : start + batch_tasks]]
        epoch += 1


def learning_rate(config: OptimizerConfig, step: int, total: int | None) -> float:
    """Of the update of batch ``step`` (from 0): a linear warm-up, then constant, or down to 0 after ``total``.

    Raises ValueError for a decaying schedule without ``total``; the configuration check refuses that before.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    if total is None:
        raise ValueError(f"optimizer.schedule={config.schedule} needs a number of steps")
    done = (step - config.warmup_steps) / max(1, total - config.warmup_steps)
    if config.schedule == "linear":
        return config.lr * max(0.0, 1.0 - done)
    return config.lr * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
