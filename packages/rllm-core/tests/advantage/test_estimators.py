"""The estimators against plain-loop references in float64, the formulas of verl and TRL, and their invariances."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rllm.advantage.estimators import GrpoSettings, ReinforceSettings, grpo, reinforce, rloo

CASES = 1000


def random_groups(rng: np.random.Generator) -> list[np.ndarray]:
    scale = 10.0 ** rng.uniform(-2, 2)
    kinds = [
        lambda g: rng.normal(size=g) * scale,
        lambda g: (rng.random(g) < 0.5).astype(float),
        lambda g: np.full(g, rng.normal()),
        lambda g: rng.integers(-2, 3, g).astype(float) + 100.0,
    ]
    return [kinds[rng.integers(4)](rng.integers(2, 17)) for _ in range(rng.integers(1, 9))]


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def sample_std(values: list[float]) -> float:
    m = mean(values)
    return math.sqrt(math.fsum((v - m) ** 2 for v in values) / (len(values) - 1))


def assert_equal(got: list[np.ndarray], expected: list[list[float]]) -> None:
    assert [a.dtype for a in got] == [np.float64] * len(got)
    assert [len(a) for a in got] == [len(e) for e in expected]
    np.testing.assert_allclose(np.concatenate(got), np.concatenate(expected), rtol=1e-6, atol=1e-6)


def test_grpo_is_the_papers_formula_with_the_sample_deviation():
    rng = np.random.default_rng(0)
    for _ in range(CASES):
        rewards = random_groups(rng)
        expected = [[(r - mean([*g])) / (sample_std([*g]) + 1e-6) for r in g] for g in rewards]
        assert_equal(grpo(rewards, GrpoSettings()), expected)


def test_grpo_without_std_is_dr_grpos_advantage():
    rng = np.random.default_rng(1)
    for _ in range(CASES):
        rewards = random_groups(rng)
        expected = [[r - mean([*g]) for r in g] for g in rewards]
        assert_equal(grpo(rewards, GrpoSettings(std=False)), expected)


def test_grpo_agrees_with_verl_and_trl_at_their_eps():
    # verl: (r - torch.mean(group)) / (torch.std(group) + 1e-6); TRL: the same with 1e-4. torch.std divides by G - 1.
    rng = np.random.default_rng(2)
    for eps in (1e-6, 1e-4):
        for _ in range(100):
            rewards = random_groups(rng)
            tensors = [torch.tensor(g) for g in rewards]
            expected = [((t - t.mean()) / (t.std() + eps)).tolist() for t in tensors]
            assert_equal(grpo(rewards, GrpoSettings(eps=eps)), expected)


def test_rloo_is_the_reward_minus_the_mean_of_the_others():
    rng = np.random.default_rng(3)
    for _ in range(CASES):
        rewards = random_groups(rng)
        expected = [[r - mean([*np.delete(g, i)]) for i, r in enumerate(g)] for g in rewards]
        assert_equal(rloo(rewards), expected)


def test_reinforce_subtracts_the_mean_of_the_whole_batch():
    rng = np.random.default_rng(4)
    for _ in range(CASES):
        rewards = random_groups(rng)
        batch = [r for g in rewards for r in g]
        assert_equal(reinforce(rewards, ReinforceSettings()), [[r - mean(batch) for r in g] for g in rewards])
        whitened = [[(r - mean(batch)) / (sample_std(batch) + 1e-6) for r in g] for g in rewards]
        assert_equal(reinforce(rewards, ReinforceSettings(std=True)), whitened)


def test_reinforce_without_a_baseline_is_the_reward_itself():
    rewards = [np.array([1.0, -2.0]), np.array([0.5])]
    got = reinforce(rewards, ReinforceSettings(baseline="none"))
    assert [a.tolist() for a in got] == [[1.0, -2.0], [0.5]]
    got[0][0] = 9.0
    assert rewards[0][0] == 1.0


def test_dividing_by_the_batchs_spread_without_its_mean_is_refused():
    with pytest.raises(ValidationError, match="set baseline=batch, or std=false"):
        ReinforceSettings(baseline="none", std=True)


ESTIMATORS = {
    "grpo": lambda r: grpo(r, GrpoSettings()),
    "dr_grpo": lambda r: grpo(r, GrpoSettings(std=False)),
    "rloo": rloo,
    "reinforce": lambda r: reinforce(r, ReinforceSettings()),
    "reinforce_std": lambda r: reinforce(r, ReinforceSettings(std=True)),
}
finite = st.floats(-1e6, 1e6, allow_subnormal=False)


@pytest.mark.parametrize("name", ESTIMATORS)
@given(reward=finite, size=st.integers(1, 33))
def test_equal_rewards_give_advantages_of_exactly_zero(name, reward, size):
    [advantages_G] = ESTIMATORS[name]([np.full(size, reward)])
    assert advantages_G.tolist() == [0.0] * size


@pytest.mark.parametrize("name", ESTIMATORS)
def test_rewards_that_differ_by_rounding_only_give_exactly_zero(name):
    # The same parts added up in another order: not a signal, and Adam would make a full step of it.
    [advantages_G] = ESTIMATORS[name]([np.array([0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2])])
    assert advantages_G.tolist() == [0.0] * 4


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_group_of_one_has_nothing_to_compare_with(name):
    [advantages_G] = ESTIMATORS[name]([np.array([7.0])])
    assert advantages_G.tolist() == [0.0]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_no_groups_give_no_advantages(name):
    assert ESTIMATORS[name]([]) == []


rewards_of_a_group = st.lists(st.floats(-10, 10, width=16), min_size=2, max_size=12)


@pytest.mark.parametrize("name", ESTIMATORS)
@given(rewards=rewards_of_a_group, shift=st.integers(-100, 100))
def test_adding_a_constant_to_all_rewards_changes_nothing(name, rewards, shift):
    group = np.array(rewards, dtype=np.float64)
    [plain], [moved] = ESTIMATORS[name]([group]), ESTIMATORS[name]([group + shift])
    np.testing.assert_allclose(moved, plain, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ESTIMATORS)
@given(rewards=rewards_of_a_group, seed=st.integers(0, 9))
def test_an_advantage_belongs_to_its_rollout_wherever_it_stands(name, rewards, seed):
    group = np.array(rewards, dtype=np.float64)
    order = np.random.default_rng(seed).permutation(len(group))
    [plain], [permuted] = ESTIMATORS[name]([group]), ESTIMATORS[name]([group[order]])
    np.testing.assert_allclose(permuted, plain[order], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(plain.sum(), 0.0, atol=1e-9)


@given(rewards=rewards_of_a_group)
def test_grpo_with_std_leaves_a_group_of_unit_spread_or_none(rewards):
    [advantages_G] = grpo([np.array(rewards, dtype=np.float64)], GrpoSettings(eps=1e-12))
    assert advantages_G.std(ddof=1) == pytest.approx(1.0, abs=1e-3) or not advantages_G.any()
