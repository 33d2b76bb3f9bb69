"""A batch's rows: each target with its rollout's advantage, nothing of a skipped group, and minibatches of them."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm.advantage import ScoredGroup, estimate, make_groups
from rllm.plugins import PluginManager
from rllm.types import Episode, Reward, Row, RowMeta, Step, Task, Trajectory
from rllm.update import groups_to_rows, split_by_groups


def step(index: int, ids: tuple[int, ...], parent: str | None = None, role: str = "main") -> Step:
    return Step(
        call_id=f"c{index}", session_id="s", index=index, parent=parent, role=role, added_ids=(1, 2),
        completion_ids=ids, logprobs=(-0.5,) * len(ids), versions=(0,) * len(ids),
    )  # fmt: skip


def episode(task: str, sample: int, reward: float, *trajectories: Trajectory) -> Episode:
    return Episode(task=Task(id=task), sample=sample, reward=Reward(value=reward), trajectories=trajectories)


def scored(episodes: list[Episode]) -> list[ScoredGroup]:
    item = PluginManager(load_installed=False).get("estimator", "rloo")
    return estimate(make_groups(episodes, 2, temperature=1.0).groups, lambda role: (item, None))


def single(task: str, sample: int, reward: float) -> Episode:
    return episode(task, sample, reward, Trajectory(steps=(step(0, (10 + sample, 9)),)))


def test_every_target_has_the_advantage_of_its_rollout():
    episodes = [single("a", s, r) for s, r in enumerate([1.0, 0.0, 0.5])]
    made = groups_to_rows(scored(episodes), episodes, temperature=1.0)
    [rows] = made.by_group
    # RLOO: 1 − mean(0, .5), 0 − mean(1, .5), .5 − mean(1, 0)
    assert [r.advantages.tolist() for r in rows] == [[0, 0, a, a] for a in (0.75, -0.75, 0.0)]
    assert [(r.meta.task_id, r.meta.sample) for r in rows] == [("a", 0), ("a", 1), ("a", 2)]


def test_a_skipped_group_has_no_rows_but_its_traces_are_counted():
    episodes = [single("a", 0, 1.0), single("a", 1, 1.0), single("b", 0, 1.0), single("b", 1, 0.0)]
    made = groups_to_rows(scored(episodes), episodes, temperature=1.0)
    assert [len(rows) for rows in made.by_group] == [0, 2]
    assert made.counts.trajectories == made.counts.rows == 4


def test_two_roles_of_one_rollout_have_rows_and_advantages_of_their_own():
    def team(sample: int, plan: float, solve: float) -> Episode:
        ask = step(0, (5,), role="plan")
        answer = step(1, (6,), parent="c0", role="solve")
        trajectories = (Trajectory(role="plan", steps=(ask,)), Trajectory(role="solve", steps=(answer,)))
        reward = Reward(value=0.0, by_role={"plan": plan, "solve": solve})
        return Episode(task=Task(id="t"), sample=sample, reward=reward, trajectories=trajectories)

    episodes = [team(0, 1.0, 0.0), team(1, 0.0, 3.0)]
    plan, solve = groups_to_rows(scored(episodes), episodes, temperature=1.0).by_group
    assert [r.advantages.tolist() for r in plan] == [[0, 0, 1.0], [0, 0, -1.0]]
    # the planner's token is context of the solver's row
    assert [r.advantages.tolist() for r in solve] == [[0, 0, 0, 0, 0, -3.0], [0, 0, 0, 0, 0, 3.0]]


def test_rows_do_not_depend_on_the_order_in_which_rollouts_ended():
    episodes = [single(t, s, float(s)) for t in "ab" for s in range(2)]
    expected = None
    for order in itertools.permutations(episodes):
        made = groups_to_rows(scored(list(order)), order, temperature=1.0)
        [rows] = split_by_groups(made.by_group, 1)
        got = [(r.meta.task_id, r.meta.sample, r.advantages.tolist()) for r in rows]
        expected = expected or got
        assert got == expected


# --- minibatches ------------------------------------------------------------------------------------------------


def row(task: str, sample: int = 0, role: str = "main", last: int = 5) -> Row:
    mask = np.array([0, 1], np.float32)
    return Row(
        tokens=np.array([1, last], np.int32),
        mask=mask,
        logprobs=-mask,
        advantages=mask,
        versions=np.array([-1, 0], np.int32),
        meta=RowMeta(task_id=task, sample=sample, role=role),
    )


@given(st.lists(st.integers(0, 4), max_size=12), st.integers(1, 6))
def test_minibatches_hold_whole_groups_evenly_and_every_row_once(sizes, wanted):
    by_group = [[row(f"{g:02}", s) for s in range(n)] for g, n in enumerate(sizes)]
    parts = split_by_groups(by_group, wanted)
    groups_of = [{r.meta.task_id for r in part} for part in parts]
    filled = [f"{g:02}" for g, n in enumerate(sizes) if n]
    assert len(parts) == min(wanted, len(filled))
    assert [t for groups in groups_of for t in sorted(groups)] == filled
    assert sum(len(p) for p in parts) == sum(sizes)
    assert max(map(len, groups_of), default=0) - min(map(len, groups_of), default=0) <= 1


def test_five_of_eight_groups_without_signal_leave_two_minibatches_of_the_other_three():
    # verl-project/verl#5228: the batch that was left did not divide, and the workers hung.
    by_group = [[row("a")], [], [], [row("b")], [], [row("c")], [], []]
    assert [[r.meta.task_id for r in part] for part in split_by_groups(by_group, 2)] == [["a", "b"], ["c"]]


def test_a_batch_without_any_row_has_no_minibatch():
    assert split_by_groups([(), ()], 4) == []


def test_rows_of_a_minibatch_stand_by_task_sample_role_and_tokens():
    rows = [row("a", 0, "x", 3), row("a", 0, "x", 256), row("a", 0, "y", 1), row("a", 1, "x"), row("a", 10, "x")]
    for order in itertools.permutations(rows):
        [part] = split_by_groups([order[:3], order[3:]], 1)
        assert all(a is b for a, b in zip(part, rows, strict=True))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_same_batch_is_always_split_in_the_same_way(k):
    by_group = [[row(t, s) for s in range(2)] for t in "abcd"]
    flat = [[(r.meta.task_id, r.meta.sample) for r in part] for part in split_by_groups(by_group, k)]
    assert flat == [[(r.meta.task_id, r.meta.sample) for r in p] for p in split_by_groups(by_group, k)]
    assert [pair for part in flat for pair in part] == [(t, s) for t in "abcd" for s in range(2)]
