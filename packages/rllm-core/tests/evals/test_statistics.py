"""The statistics of an evaluation against enumeration, simulation and closed forms."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm.evals.statistics import pass_at_k, standard_error, summarise
from rllm.types import Episode, Failure, Reward, Task, Trajectory


def episode(task: str, value: float | None, sample: int = 0, correct: bool | None = None) -> Episode:
    reward = None if value is None else Reward(value=value, is_correct=correct)
    failure = Failure(kind="timeout", message="slow") if value is None else None
    return Episode(task=Task(id=task), sample=sample, reward=reward, failure=failure)


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_all_draws_that_hold_a_correct_one(n, data):
    c = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    samples = [True] * c + [False] * (n - c)
    draws = list(itertools.combinations(samples, k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(any(d) for d in draws) / len(draws))


def test_pass_at_more_than_there_are_is_an_error():
    with pytest.raises(ValueError, match="pass@3 needs at least 3 samples, there are 2"):
        pass_at_k(2, 1, 3)


def test_the_standard_error_is_clustered_by_task():
    # 20 tasks whose samples all agree hold 20 observations, not 200.
    rng = np.random.default_rng(0)
    values = {str(t): [float(rng.random() < 0.5)] * 10 for t in range(20)}
    means = np.array([v[0] for v in values.values()])
    assert standard_error(values) == pytest.approx(means.std(ddof=1) / math.sqrt(20))


def test_intervals_cover_the_truth_in_19_of_20_simulated_evaluations():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(500):
        chances = rng.beta(1, 1, size=40)
        values = {str(t): list((rng.random(10) < p).astype(float)) for t, p in enumerate(chances)}
        mean = np.mean([np.mean(v) for v in values.values()])
        hits += abs(mean - 0.5) <= 1.96 * standard_error(values)
    assert 0.91 <= hits / 500 <= 0.98


def test_failed_samples_count_as_zero_and_are_told_apart():
    summary = summarise([episode("a", 1.0), episode("a", None, 1), episode("b", 1.0), episode("b", 1.0, 1)])
    assert summary.reward == pytest.approx(0.75)
    assert summary.reward_graded == pytest.approx(1.0)
    assert (summary.n_failed, summary.failures) == (1, {"timeout": 1})


def test_correctness_follows_the_evaluator_where_it_says_so():
    summary = summarise([episode("a", 0.2, correct=True), episode("b", 1.0, correct=False)])
    assert summary.accuracy == pytest.approx(0.5)


def test_rewards_that_the_agent_gave_its_trajectories_are_averaged():
    episodes = [Episode(task=Task(id="a"), trajectories=(Trajectory(reward=1.0), Trajectory(role="b", reward=0.0)))]
    assert summarise(episodes).reward == pytest.approx(0.5)


def test_no_episodes_is_an_error():
    with pytest.raises(ValueError, match="no episodes"):
        summarise([])
