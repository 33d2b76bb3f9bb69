"""Batches and learning rates as pure functions of the seed."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm.config import OptimizerConfig, TrainConfig
from rllm.train.schedule import learning_rate, planned_steps, task_batches
from rllm.types import Task


def tasks(n: int) -> list[Task]:
    return [Task(id=str(i)) for i in range(n)]


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
def test_each_pass_takes_every_task_once(n, batch, seed):
    per_pass = -(-n // batch)
    stream = list(islice(task_batches(tasks(n), batch, seed), 2 * per_pass))
    for batches in (stream[:per_pass], stream[per_pass:]):
        assert sorted(int(t.id) for b in batches for t in b) == list(range(n))


def test_the_order_depends_on_the_seed_alone():
    def order(seed):
        return [t.id for b in islice(task_batches(tasks(20), 4, seed), 5) for t in b]

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_one_pass_is_the_default_and_a_time_limit_alone_counts_no_steps():
    assert planned_steps(TrainConfig(batch_tasks=8), 20) == 3
    assert planned_steps(TrainConfig(batch_tasks=8, epochs=2.0), 20) == 6
    assert planned_steps(TrainConfig(batch_tasks=8, steps=7), 20) == 7
    assert planned_steps(TrainConfig(batch_tasks=8, time_limit_s=60), 20) is None


def test_the_learning_rate_warms_up_and_then_decays_to_zero():
    config = OptimizerConfig(lr=1.0, warmup_steps=4, schedule="linear")
    rates = [learning_rate(config, s, 12) for s in range(13)]
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[4] == pytest.approx(1.0)
    assert rates[8] == pytest.approx(0.5)
    assert rates[12] == pytest.approx(0.0)


def test_cosine_is_half_way_at_half_time():
    config = OptimizerConfig(lr=2.0, warmup_steps=0, schedule="cosine")
    assert learning_rate(config, 5, 10) == pytest.approx(1.0)


def test_constant_needs_no_end_and_a_decay_does():
    assert learning_rate(OptimizerConfig(lr=1.0, warmup_steps=0), 99, None) == 1.0
    with pytest.raises(ValueError, match="linear needs a number of steps"):
        learning_rate(OptimizerConfig(schedule="linear", warmup_steps=0), 0, None)
