"""Groups into advantages through the registry: roles, small groups, groups without signal, bad estimators."""

import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest

from rllm.advantage import ScoredGroup, estimate, shuffle_rewards, smallest_group
from rllm.errors import PluginError
from rllm.plugins import PluginManager
from rllm.protocols import Registered
from rllm.types import Group, Trajectory


def group(*rewards: float, task: str = "t", role: str = "main") -> Group:
    return Group(
        task_id=task,
        role=role,
        members=tuple((Trajectory(role=role),) for _ in rewards),
        rewards_G=np.array(rewards, dtype=np.float64),
        wanted=4,
        samples=tuple(range(len(rewards))),
    )


@pytest.fixture
def plugins() -> PluginManager:
    return PluginManager(load_installed=False)


def scored_by(plugins: PluginManager, name: str, *groups: Group, **settings) -> list[ScoredGroup]:
    item = plugins.get("estimator", name)
    return estimate(groups, lambda role: (item, item.settings(**settings) if item.settings else None))


def stranger(value, **extra) -> Registered:
    return Registered("mine", value, "their-plugin", extra=extra)


def test_the_built_in_estimators_come_through_the_hook(plugins):
    assert plugins.names("estimator") == ["grpo", "reinforce", "rloo"]
    assert {n: smallest_group(plugins.get("estimator", n)) for n in plugins.names("estimator")} == {
        "grpo": 2,
        "reinforce": 1,
        "rloo": 2,
    }


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_a_group_of_one_is_never_trained_by_an_estimator_that_compares_siblings(plugins, name):
    alone, pair = scored_by(plugins, name, group(1.0, task="alone"), group(1.0, 0.0, task="pair"))
    assert alone.skipped == "too_small"
    assert alone.advantages_G.tolist() == [0.0]
    assert pair.skipped is None


def test_a_group_of_one_is_as_good_as_any_other_against_a_batch_baseline(plugins):
    scored = scored_by(plugins, "reinforce", group(1.0, task="a"), group(0.0, task="b"))
    assert [s.skipped for s in scored] == [None, None]
    assert [s.advantages_G.tolist() for s in scored] == [[0.5], [-0.5]]


def test_a_strangers_estimator_that_says_nothing_is_given_no_group_of_one():
    # rllm-org/rllm#605: GRPO took the raw reward of a group of one as its advantage.
    [scored] = estimate([group(1.0)], lambda role: (stranger(lambda rewards: rewards), None))
    assert scored.skipped == "too_small"
    [scored] = estimate([group(1.0)], lambda role: (stranger(lambda rewards: rewards, min_group=1), None))
    assert scored.advantages_G.tolist() == [1.0]


def test_a_group_whose_rewards_are_equal_is_skipped_though_it_still_belongs_to_a_batch_baseline(plugins):
    same, mixed = scored_by(plugins, "grpo", group(1.0, 1.0, task="a"), group(1.0, 0.0, task="b"))
    assert (same.skipped, mixed.skipped) == ("no_signal", None)
    same, mixed = scored_by(plugins, "reinforce", group(1.0, 1.0, task="a"), group(1.0, 0.0, task="b"))
    assert (same.skipped, mixed.skipped) == (None, None)
    assert same.advantages_G.tolist() == [0.25, 0.25]


def test_each_role_has_its_own_estimator_and_its_own_batch(plugins):
    grpo, reinforce = plugins.get("estimator", "grpo"), plugins.get("estimator", "reinforce")
    chosen = {"solver": (grpo, grpo.settings(std=False)), "judge": (reinforce, reinforce.settings(baseline="none"))}
    groups = [group(1.0, 0.0, role="solver"), group(3.0, role="judge"), group(4.0, 2.0, role="solver", task="u")]
    scored = estimate(groups, chosen.__getitem__)
    assert [s.group.role for s in scored] == ["solver", "judge", "solver"]
    assert [s.advantages_G.tolist() for s in scored] == [[0.5, -0.5], [3.0], [1.0, -1.0]]


def test_nothing_normalises_what_an_estimator_returned(plugins):
    # axon-rl/gem#113: advantages normalised twice.
    returned = [np.array([300.0, -1.0, 0.125]), np.array([7.0, 7.0])]
    item = stranger(lambda rewards: returned)
    scored = estimate([group(1.0, 0.0, 2.0), group(0.0, 1.0, task="u")], lambda role: (item, None))
    assert [s.advantages_G.tolist() for s in scored] == [[300.0, -1.0, 0.125], [7.0, 7.0]]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda rewards: rewards[:-1], "returned 1 arrays for 2 groups"),
        (lambda rewards: [r[:-1] for r in rewards], r"returned an array of shape \(1,\) for 2 rollouts \(task 't'"),
        (lambda rewards: [r.mean() for r in rewards], r"returned an array of shape \(\) for 2 rollouts"),
        (lambda rewards: [np.array([np.nan, 1.0])] * 2, r"returned \[nan, 1.0\].*must be finite"),
        (lambda rewards: [np.array([np.inf, 1.0])] * 2, r"returned \[inf, 1.0\].*must be finite"),
        (lambda rewards: rewards[9], "failed on 2 groups: IndexError"),
        (lambda rewards: None, "failed on 2 groups: TypeError"),
        (lambda rewards: [["high", "low"]] * 2, "failed on 2 groups: ValueError"),
    ],
)
def test_an_estimator_that_returns_something_else_is_named_with_its_plugin(value, message):
    groups = [group(1.0, 0.0), group(0.0, 1.0, task="u")]
    with pytest.raises(PluginError, match=f"the estimator 'mine' of plugin 'their-plugin' {message}"):
        estimate(groups, lambda role: (stranger(value), None))


def test_an_estimator_can_not_change_the_rewards_it_is_given():
    def greedy(rewards):
        for r in rewards:
            r[:] = 0.0
        return rewards

    before = group(1.0, 0.0)
    estimate([before], lambda role: (stranger(greedy), None))
    assert before.rewards_G.tolist() == [1.0, 0.0]


def test_an_estimator_with_only_small_groups_is_not_called():
    def never(rewards):
        raise AssertionError

    [scored] = estimate([group(1.0)], lambda role: (stranger(never), None))
    assert scored.skipped == "too_small"


def test_no_groups_need_no_estimator():
    assert estimate([], {}.__getitem__) == []


# --- the control run --------------------------------------------------------------------------------------------


def test_shuffled_rewards_are_the_same_rewards_of_the_same_rollouts():
    groups = [group(1.0, 2.0, 3.0), group(4.0, 5.0, task="u")]
    shuffled = shuffle_rewards(groups, np.random.default_rng(0))
    for before, after in zip(groups, shuffled, strict=True):
        assert sorted(after.rewards_G) == sorted(before.rewards_G)
        assert dataclasses.replace(after, rewards_G=before.rewards_G) == dataclasses.replace(
            before, rewards_G=before.rewards_G
        )
    assert groups[0].rewards_G.tolist() == [1.0, 2.0, 3.0]


def test_the_same_generator_shuffles_in_the_same_way():
    groups = [group(*map(float, range(8)))]
    first, again, other = (shuffle_rewards(groups, np.random.default_rng(s))[0].rewards_G.tolist() for s in (1, 1, 2))
    assert first == again != other


def test_every_permutation_is_equally_likely():
    rng = np.random.default_rng(0)
    drawn = Counter(tuple(shuffle_rewards([group(1.0, 2.0, 3.0)], rng)[0].rewards_G) for _ in range(6000))
    assert set(drawn) == set(itertools.permutations([1.0, 2.0, 3.0]))
    # 1000 expected of each; the standard deviation of a count is √(6000 · 1/6 · 5/6) = 29.
    assert all(abs(count - 1000) < 150 for count in drawn.values())
