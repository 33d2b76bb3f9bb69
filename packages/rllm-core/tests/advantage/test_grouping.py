"""Which rollouts make a group, with which reward, and what is counted where one is left out."""

import math

import pytest

from rllm.advantage import estimate, make_groups
from rllm.config import OnFailure
from rllm.errors import EvaluatorError, TaskError
from rllm.plugins import PluginManager
from rllm.types import Episode, Failure, FailureKind, Reward, SamplingParams, Step, Task, Trajectory


def call(index: int = 0, *, ids: tuple[int, ...] = (5, 6), **changes) -> Step:
    n = len(ids)
    fields = {
        "call_id": f"call{index}",
        "session_id": "s",
        "index": index,
        "added_ids": (1, 2),
        "completion_ids": ids,
        "logprobs": (-0.5,) * n,
        "versions": (0,) * n,
    }
    return Step(**(fields | changes))


def run(role: str = "main", reward: float | None = None, *steps: Step) -> Trajectory:
    return Trajectory(role=role, reward=reward, steps=steps or (call(),))


def episode(
    sample: int,
    reward: float | Reward | None,
    *,
    task: str = "t",
    failure: FailureKind | None = None,
    trajectories: tuple[Trajectory, ...] | None = None,
) -> Episode:
    return Episode(
        id=f"{task}-{sample}",
        task=Task(id=task),
        sample=sample,
        reward=Reward(value=reward) if isinstance(reward, float | int) else reward,
        failure=None if failure is None else Failure(kind=failure, message="it failed"),
        trajectories=(run(),) if trajectories is None else trajectories,
    )


def grouped(*episodes: Episode, wanted: int = 4, **options):
    return make_groups(episodes, wanted, **({"temperature": 1.0} | options))


def grpo(groups):
    plugins = PluginManager(load_installed=False)
    item = plugins.get("estimator", "grpo")
    return estimate(groups, lambda role: (item, item.settings()))


def test_a_group_is_one_task_and_one_role_whatever_its_trajectories_are_called():
    # rllm-org/rllm#605: groups keyed by a trajectory's name or id fell apart into groups of one.
    episodes = [
        episode(s, float(s), task=t, trajectories=(run().model_copy(update={"span_id": f"{t}{s}"}),))
        for t in "ba"
        for s in range(4)
    ]
    result = grouped(*episodes)
    assert [(g.task_id, g.role, len(g)) for g in result.groups] == [("a", "main", 4), ("b", "main", 4)]
    assert not result.left_out
    assert result.smaller == 0


def test_members_stand_by_sample_number_whatever_order_they_ended_in():
    result = grouped(*(episode(s, float(s)) for s in (2, 0, 3, 1)))
    [group] = result.groups
    assert group.samples == (0, 1, 2, 3)
    assert group.rewards_G.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_role_that_acts_several_times_counts_once_with_its_mean_reward():
    twice = (run("solver", 1.0, call(1)), run("solver", 0.0, call(0)), run("judge", 0.25))
    [judge, solver] = grouped(episode(0, None, trajectories=twice)).groups
    assert (judge.role, judge.rewards_G.tolist()) == ("judge", [0.25])
    assert (solver.role, solver.rewards_G.tolist()) == ("solver", [0.5])
    assert [t.reward for t in solver.members[0]] == [0.0, 1.0]  # by their first calls


def test_a_trajectorys_own_reward_wins_over_the_episodes_for_its_role_and_that_over_its_value():
    reward = Reward(value=1.0, by_role={"b": 2.0})
    trajectories = (run("a", 5.0), run("b"), run("c"))
    groups = grouped(episode(0, reward, trajectories=trajectories)).groups
    assert {g.role: g.rewards_G.tolist() for g in groups} == {"a": [5.0], "b": [2.0], "c": [1.0]}


def test_unscored_rollouts_are_left_out_and_never_beat_those_that_tried():
    # huggingface/trl#6427: rewards None, -1, -1, None; None counted as 0 would be reinforced.
    result = grouped(*(episode(s, r) for s, r in enumerate([None, -1.0, -1.0, None])))
    [group] = result.groups
    assert group.samples == (1, 2)
    assert result.left_out == {"no_reward": 2}
    assert result.smaller == 1
    assert [s.skipped for s in grpo(result.groups)] == ["no_signal"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_left_out_and_counted(value):
    result = grouped(
        episode(0, 1.0), episode(1, value), episode(2, 0.0), episode(3, Reward(value=0, by_role={"main": value}))
    )
    assert result.groups[0].rewards_G.tolist() == [1.0, 0.0]
    assert result.left_out == {"not_finite": 2}


def test_a_rollout_of_which_one_trajectory_has_no_reward_is_left_out():
    result = grouped(episode(0, None, trajectories=(run("main", 1.0), run("main", None))))
    assert result.groups == ()
    assert result.left_out == {"no_reward": 1}


@pytest.mark.parametrize(
    ("graded", "failure_reward", "expected"),
    [([1.0, 0.5], 0.0, 0.0), ([1.0, -1.0], 0.0, -1.0), ([1.0, 0.5], 0.25, 0.25), ([], 0.0, 0.0), ([2.0], 9.0, 2.0)],
)
def test_a_failure_by_the_policys_doing_never_gets_more_than_the_lowest_grade(graded, failure_reward, expected):
    episodes = [episode(s, r) for s, r in enumerate(graded)]
    failed = episode(9, None, failure="agent_error")
    [group] = grouped(*episodes, failed, failure_reward=failure_reward).groups
    assert group.rewards_G.tolist() == [*graded, expected]


def test_a_failed_rollout_that_was_graded_keeps_its_grade():
    [group] = grouped(episode(0, 0.75, failure="call_limit"), episode(1, 0.0)).groups
    assert group.rewards_G.tolist() == [0.75, 0.0]


@pytest.mark.parametrize("kind", ["timeout", "infrastructure", "evaluator_error", "no_model_call"])
def test_a_failure_by_others_doing_leaves_the_group_and_is_counted(kind):
    result = grouped(episode(0, 1.0), episode(1, None, failure=kind))
    assert result.groups[0].samples == (0,)
    assert result.left_out == {kind: 1}


def test_the_rule_of_a_failure_can_be_changed():
    failed = episode(1, None, failure="timeout")
    kept = grouped(episode(0, 1.0), failed, on_failure=OnFailure(timeout="failure_reward"))
    assert kept.groups[0].rewards_G.tolist() == [1.0, 0.0]
    dropped = grouped(episode(1, 0.5, failure="call_limit"), on_failure=OnFailure(call_limit="drop"))
    assert dropped.left_out == {"call_limit": 1}


def test_a_failure_without_a_completed_call_is_dropped_whatever_its_kind():
    result = grouped(episode(0, 1.0), episode(1, None, failure="agent_error", trajectories=()))
    assert result.left_out == {"agent_error": 1}


UNTRAINABLE = {
    "no_target": (),
    "no_target: empty completion": (run("main", None, call(ids=())),),
    "no_target: 10 ids, 9 logprobs": (run("main", None, call(untrainable="10 ids, 9 logprobs")),),
    "no_target: other temperature": (run("main", None, call(sampling=SamplingParams(temperature=0.5))),),
    "no_target: modified distribution": (
        run("main", None, call(sampling=SamplingParams(top_p=0.9)), call(1, sampling=SamplingParams(temperature=0))),
        run("main", None, call(2, ids=())),
    ),
    "no_target: call cancelled": (run("main", None, call(status="cancelled")),),
    "no_target: logprob not finite": (run("main", None, call(logprobs=(-0.5, math.nan))),),
    "no_target: empty prompt": (run("main", None, call(added_ids=())),),
}


@pytest.mark.parametrize("reason", UNTRAINABLE)
def test_a_rollout_without_a_token_to_train_on_does_not_move_its_siblings_baseline(reason):
    # huggingface/trl#6420, verl-project/verl#6452: the siblings' advantages are those of a group of 3.
    rewards = [1.0, 0.0, 0.5]
    empty = episode(3, 1.0, trajectories=UNTRAINABLE[reason])
    result = grouped(*(episode(s, r) for s, r in enumerate(rewards)), empty)
    assert result.left_out == {reason: 1}
    assert result.smaller == 1
    [scored] = grpo(result.groups)
    # mean 0.5, sample deviation 0.5
    assert scored.advantages_G == pytest.approx([1.0, -1.0, 0.0], abs=1e-5)


def test_one_trainable_step_is_enough_to_belong_to_a_group():
    steps = (call(0, ids=()), call(1), call(2, status="error"))
    assert len(grouped(episode(0, 1.0, trajectories=(run("main", None, *steps),))).groups) == 1


def test_the_runs_own_temperature_is_the_right_one():
    warm = run("main", None, call(sampling=SamplingParams(temperature=0.7)))
    assert len(grouped(episode(0, 1.0, trajectories=(warm,)), temperature=0.7).groups) == 1
    assert grouped(episode(0, 1.0, trajectories=(warm,)), temperature=1.0).left_out == {
        "no_target: other temperature": 1
    }


def test_roles_that_are_not_trained_are_counted():
    both = (run("solver"), run("critic"))
    result = grouped(episode(0, 1.0, trajectories=both), roles=["solver"])
    assert [g.role for g in result.groups] == ["solver"]
    assert result.left_out == {"role_not_trained": 1}


def test_a_reward_by_step_is_refused_by_name_rather_than_ignored():
    # microsoft/agent-lightning#392: 0.2 on call 2, 1.0 at the end; nobody could say which was used.
    reward = Reward(value=1.0, by_step={"call2": 0.2})
    with pytest.raises(EvaluatorError, match=r"task 't' a reward by step \(0.2 for call 'call2'\).*Reward.value"):
        grouped(episode(0, reward))


def test_the_same_sample_twice_is_an_error_that_names_the_task():
    with pytest.raises(TaskError, match="two rollouts of task 't' have the sample number 1"):
        grouped(episode(1, 0.0), episode(1, 1.0))


def test_no_episodes_make_no_groups():
    assert grouped().groups == ()
