"""Steps become trajectories, and what a flow returned is laid over them."""

import random

import pytest

from rllm.errors import SessionError
from rllm.trace import SIDE_CALL, apply_returned, assemble
from rllm.types import Episode, Step, Trajectory


def step(call_id: str, index: int, role: str = "main", span: str | None = None, **fields: object) -> Step:
    return Step.model_validate(
        {
            "call_id": call_id,
            "session_id": "s",
            "index": index,
            "role": role,
            "span_id": span,
            "completion_ids": (index,),
            "logprobs": (-1.0,),
            "versions": (0,),
            **fields,
        }
    )


def shape(trajectories) -> list[tuple[str, str | None, list[str]]]:
    return [(t.role, t.span_id, [s.key for s in t.steps]) for t in trajectories]


def named(*keys: str) -> tuple[Step, ...]:
    """Steps as a flow would name them: it knows the call's id and nothing else."""
    return tuple(Step(call_id=key, session_id="", index=0) for key in keys)


RECORDED = [
    step("m1", 0),
    step("a1", 1, "solver", "x"),
    step("b1", 2, "checker", "y"),
    step("a2", 3, "solver", "x", status="error"),
    step("a3", 4, "solver", "z"),
    step("m2", 5),
]


def test_each_span_is_a_trajectory_and_the_rest_is_one():
    shuffled = random.Random(0).sample(RECORDED, len(RECORDED))
    trajectories, side = assemble(shuffled)
    assert shape(trajectories) == [
        ("main", None, ["m1", "m2"]),
        ("solver", "x", ["a1", "a2"]),
        ("checker", "y", ["b1"]),
        ("solver", "z", ["a3"]),
    ]
    assert side == ()
    assert trajectories[1].steps[1].status == "error"


def test_choices_of_one_call_stay_in_order():
    trajectories, _ = assemble([step("a", 0, choice=1), step("b", 1), step("a", 0)])
    assert shape(trajectories) == [("main", None, ["a", "a/1", "b"])]


def test_frozen_upstreams_and_side_calls_belong_to_no_trajectory():
    judge = step("j", 0, route="judge", untrainable="frozen upstream")
    side = step("k", 1, untrainable=SIDE_CALL)
    greedy = step("g", 2, untrainable="drawn greedily")
    trajectories, side_steps = assemble([side, greedy, judge])
    assert shape(trajectories) == [("main", None, ["g"])]
    assert side_steps == (judge, side)


def test_nothing_recorded_is_no_trajectory():
    assert assemble([]) == ((), ())


def test_a_returned_trajectory_is_filled_with_its_roles_recorded_steps():
    trajectories, _ = assemble(RECORDED)
    result = apply_returned(trajectories, Trajectory(role="checker", output="fine", reward=0.5))
    assert shape(result) == shape(trajectories)
    checker = result[2]
    assert (checker.output, checker.reward) == ("fine", 0.5)
    assert checker.steps == trajectories[2].steps
    assert [t.reward for t in result if t is not checker] == [None] * 3


def test_one_returned_trajectory_takes_all_runs_of_its_role():
    trajectories, _ = assemble(RECORDED)
    result = apply_returned(trajectories, Trajectory(role="solver", reward=1.0))
    assert shape(result) == [
        ("main", None, ["m1", "m2"]),
        ("solver", None, ["a1", "a2", "a3"]),
        ("checker", "y", ["b1"]),
    ]


def test_as_many_as_were_recorded_are_matched_in_order():
    trajectories, _ = assemble(RECORDED)
    returned = Episode(trajectories=(Trajectory(role="solver", reward=1.0), Trajectory(role="solver", reward=2.0)))
    result = apply_returned(trajectories, returned)
    assert shape(result) == shape(trajectories)
    assert [t.reward for t in result] == [None, 1.0, None, 2.0]


def test_a_span_names_its_run_whatever_stands_before_it():
    trajectories, _ = assemble(RECORDED)
    returned = Episode(
        trajectories=(Trajectory(role="solver", reward=1.0), Trajectory(role="solver", span_id="z", reward=2.0))
    )
    assert [t.reward for t in apply_returned(trajectories, returned)] == [None, 1.0, None, 2.0]
    with pytest.raises(SessionError, match="span 'q'"):
        apply_returned(trajectories, Trajectory(span_id="q"))


def test_steps_named_by_call_id_are_the_recorded_ones():
    trajectories, _ = assemble(RECORDED)
    result = apply_returned(trajectories, Trajectory(role="best", steps=named("a3", "m1"), reward=1.0))
    assert shape(result) == [
        ("best", None, ["m1", "a3"]),
        ("solver", "x", ["a1", "a2"]),
        ("checker", "y", ["b1"]),
        ("main", None, ["m2"]),
    ]
    assert result[0].steps == (RECORDED[0], RECORDED[4])


def test_a_returned_role_names_the_only_run_that_is_left():
    trajectories, _ = assemble([step("m1", 0), step("m2", 1)])
    assert shape(apply_returned(trajectories, Trajectory(role="solver"))) == [("solver", None, ["m1", "m2"])]


def test_a_role_that_made_no_call_has_a_trajectory_without_steps():
    trajectories, _ = assemble([step("m1", 0)])
    returned = Episode(trajectories=(Trajectory(role="checker", reward=0.0), Trajectory(role="main", reward=1.0)))
    assert shape(apply_returned(trajectories, returned)) == [("main", None, ["m1"]), ("checker", None, [])]
    assert shape(apply_returned((), Trajectory(role="solver"))) == [("solver", None, [])]


def test_an_episode_without_trajectories_leaves_the_recorded_ones():
    trajectories, _ = assemble(RECORDED)
    assert apply_returned(trajectories, Episode(output="x")) == trajectories


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (Trajectory(steps=named("m1", "nope")), "call 'nope', which was never recorded"),
        (Trajectory(steps=named("m1", "m1")), "'m1' twice"),
        (Episode(trajectories=(Trajectory(steps=named("m1")), Trajectory(steps=named("m1")))), "'m1' twice"),
        (Episode(trajectories=(Trajectory(role="solver"),) * 3), "3 trajectories of role 'solver'.* 2 runs"),
        (Trajectory(role="nobody"), "'nobody', but no call of that role was recorded.*'checker', 'main', 'solver'"),
    ],
)
def test_what_can_not_be_told_apart_is_an_error_that_says_so(returned, message):
    trajectories, _ = assemble(RECORDED)
    with pytest.raises(SessionError, match=message):
        apply_returned(trajectories, returned)
