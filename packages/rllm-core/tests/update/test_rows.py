"""Steps into rows: every trainable sampled token a target exactly once, in its own context, whatever the tree."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllm.errors import TraceStoreError
from rllm.types import Row, SamplingParams, Step, Trajectory
from rllm.update import RowCounts, trajectory_to_rows

_unique = itertools.count(1)


def step(call_id: str, parent: Step | None = None, added=(1, 2), ids=(3, 4), **changes) -> Step:
    fields = {
        "call_id": call_id,
        "session_id": "s",
        "index": 0 if parent is None else parent.index + 1,
        "parent": None if parent is None else parent.key,
        "added_ids": tuple(added),
        "completion_ids": tuple(ids),
        # exact in float32 and unique, so that a target tells which sampled token it is
        "logprobs": tuple(-next(_unique) / 1024 for _ in ids),
        "versions": (7,) * len(ids),
    }
    return Step(**(fields | changes))


def rows_of(*steps: Step, own: tuple[Step, ...] | None = None, advantage=1.5, temperature=1.0):
    trajectory = Trajectory(role="main", steps=steps if own is None else own)
    by_key = {s.key: s for s in steps}
    return trajectory_to_rows(trajectory, advantage, by_key, temperature=temperature, task_id="t", sample=3)


def conversation(turns: int, prefix: str = "c") -> list[Step]:
    steps: list[Step] = []
    for k in range(turns):
        last = steps[-1] if steps else None
        steps.append(step(f"{prefix}{k}", last, added=(100 + k, 200 + k), ids=(300 + k, 400 + k, 9)))
    return steps


def stream(target: Step, steps: dict[str, Step]) -> list[int]:
    """By the definition in ``Step``: the parent's whole stream, what is added, what was drawn."""
    before = [] if target.parent is None else stream(steps[target.parent], steps)
    return [*before, *target.added_ids, *target.completion_ids]


def plain(rows: list[Row]) -> list[tuple]:
    arrays = ("tokens", "mask", "logprobs", "advantages", "versions")
    return [tuple(getattr(row, name).tolist() for name in arrays) for row in rows]


# --- conversations ----------------------------------------------------------------------------------------------


def test_an_unedited_conversation_of_twelve_turns_is_one_row():
    steps = conversation(12)
    [row], counts = rows_of(*steps)
    assert row.tokens.tolist() == [t for k in range(12) for t in (100 + k, 200 + k, 300 + k, 400 + k, 9)]
    assert row.mask.tolist() == [0, 0, 1, 1, 1] * 12
    assert row.versions.tolist() == [-1, -1, 7, 7, 7] * 12
    assert row.advantages.tolist() == [0, 0, 1.5, 1.5, 1.5] * 12
    assert row.logprobs[row.mask == 1].tolist() == [lp for s in steps for lp in s.logprobs]
    assert [a.dtype for a in (row.tokens, row.mask, row.logprobs, row.advantages, row.versions)] == [
        np.int32, np.float32, np.float32, np.float32, np.int32,
    ]  # fmt: skip
    assert row.meta.call_ids == tuple(s.key for s in steps)
    assert (row.meta.task_id, row.meta.sample, row.meta.role) == ("t", 3, "main")
    assert counts == RowCounts(trajectories=1, rows=1, target_tokens=36)


def test_an_edit_of_the_history_starts_a_second_row_and_is_counted():
    before = conversation(4)
    edited = step("e", None, added=(100, 200, 999), ids=(5,), index=4, break_reason="edited")
    after = step("f", edited, added=(6,), ids=(7,))
    rows, counts = rows_of(*before, edited, after)
    assert [r.tokens.tolist() for r in rows] == [
        stream(before[-1], {s.key: s for s in before}),
        [100, 200, 999, 5, 6, 7],
    ]
    assert counts.rows == 2
    assert counts.prefix_breaks == {"edited": 1}


def test_a_template_that_can_not_be_continued_gives_a_row_for_each_turn():
    steps = [
        step(f"c{k}", None, added=range(1, 3 * k + 2), index=k, break_reason="template" if k else None)
        for k in range(5)
    ]
    rows, counts = rows_of(*steps)
    assert len(rows) == 5
    assert counts.prefix_breaks == {"template": 4}
    assert counts.target_tokens == 10


def test_a_fork_shares_its_beginning_as_a_target_in_one_row_and_context_in_the_other():
    root = step("root", None, added=(1,), ids=(2, 3))
    left, right = step("l", root, added=(4,), ids=(5,)), step("r", root, added=(4,), ids=(6,))
    rows, _ = rows_of(root, right, left)
    assert [r.tokens.tolist() for r in rows] == [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6]]
    assert [r.mask.tolist() for r in rows] == [[0, 1, 1, 0, 1], [0, 0, 0, 0, 1]]
    assert rows[1].logprobs[:4].tolist() == [0.0] * 4
    assert rows[1].versions.tolist() == [-1, -1, -1, -1, 7]


def test_several_choices_of_one_call_are_rows_of_their_own():
    choices = [step("a", None, ids=(10 + k,), choice=k) for k in range(3)]
    rows, _ = rows_of(*choices)
    assert [r.tokens.tolist() for r in rows] == [[1, 2, 10], [1, 2, 11], [1, 2, 12]]
    assert [r.meta.call_ids for r in rows] == [("a",), ("a/1",), ("a/2",)]


def test_a_retry_that_was_thrown_away_is_a_row_beside_the_one_that_counted():
    first = step("a", None)
    thrown, kept = step("b", first, ids=(5,)), step("c", first, ids=(6,))
    last = step("d", kept)
    rows, counts = rows_of(first, thrown, kept, last)
    assert len(rows) == 2
    assert counts.target_tokens == 6


def test_another_roles_step_on_the_path_is_context():
    asked = step("a", None, role="planner")
    solved = step("b", asked, added=(5,), ids=(6, 7), role="solver")
    back = step("c", solved, added=(8,), ids=(9,), role="planner")
    [row], counts = rows_of(asked, solved, back, own=(asked, back))
    assert row.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert row.mask.tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 1]
    [row], _ = rows_of(asked, solved, back, own=(solved,))
    assert row.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert row.mask.tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert counts.untrainable_steps == {}


def test_versions_are_those_that_drew_each_token():
    [row], _ = rows_of(step("a", None, versions=(4, 5)))
    assert row.versions.tolist() == [-1, -1, 4, 5]


# --- what is not trained ----------------------------------------------------------------------------------------

UNTRAINABLE = {
    "10 ids, 9 logprobs": {"untrainable": "10 ids, 9 logprobs"},
    "frozen upstream": {"route": "judge"},
    "call cancelled": {"status": "cancelled"},
    "call cut": {"status": "cut"},
    "other temperature": {"sampling": SamplingParams(temperature=0.6)},
    "modified distribution": {"sampling": SamplingParams(top_k=40)},
    "logprob not finite": {"logprobs": (-0.5, float("nan"))},
    "empty completion": {"completion_ids": (), "logprobs": (), "versions": ()},
}


@pytest.mark.parametrize("reason", UNTRAINABLE)
def test_an_untrainable_step_is_context_and_counted_by_its_reason(reason):
    first = step("a")
    bad = step("b", first, added=(5,), **UNTRAINABLE[reason])
    last = step("c", bad, added=(6,), ids=(7,))
    [row], counts = rows_of(first, bad, last)
    drawn = bad.completion_ids
    assert row.tokens.tolist() == [1, 2, 3, 4, 5, *drawn, 6, 7]
    assert row.mask.tolist() == [0, 0, 1, 1, 0, *(0 for _ in drawn), 0, 1]
    assert counts.untrainable_steps == {reason: 1}
    assert counts.target_tokens == 3


@pytest.mark.parametrize("reason", UNTRAINABLE)
def test_a_trajectory_of_untrainable_steps_has_no_row(reason):
    rows, counts = rows_of(step("a", None, **UNTRAINABLE[reason]))
    assert rows == []
    assert counts == RowCounts(trajectories=1, untrainable_steps=Counter({reason: 1}))


def test_what_follows_the_last_trainable_token_is_left_off():
    first = step("a")
    [row], _ = rows_of(first, step("b", first, status="error", ids=()))
    assert row.tokens.tolist() == [1, 2, 3, 4]


def test_a_token_without_any_context_is_no_target():
    rows, counts = rows_of(step("a", None, added=()))
    assert rows == []
    assert counts.untrainable_steps == {"empty prompt": 1}


def test_a_trajectory_without_steps_has_no_row():
    assert rows_of() == ([], RowCounts(trajectories=1))


def test_the_rows_temperature_is_that_of_its_logprobs():
    # huggingface/trl#4159: sampler logprobs at one temperature, trainer's at another, a first ratio of 2.
    warm = step("a", None, sampling=SamplingParams(temperature=0.6))
    [row], _ = rows_of(warm, temperature=0.6)
    assert row.temperature == 0.6


def test_a_missing_or_later_parent_is_an_error_that_names_both_calls():
    lost = step("b", step("a"))
    with pytest.raises(
        TraceStoreError, match=r"call 'b' .* continues call 'a', which is not among the episode's steps"
    ):
        rows_of(lost)
    one, two = (step(name).model_copy(update={"parent": other, "index": 1}) for name, other in ("xy", "yx"))
    with pytest.raises(TraceStoreError, match="which did not start before it"):
        rows_of(one, two)


# --- any tree ---------------------------------------------------------------------------------------------------


@st.composite
def token_trees(draw) -> list[Step]:
    ids = st.lists(st.integers(0, 2), max_size=3)  # few tokens, so that streams coincide
    steps: list[Step] = []
    for k in range(draw(st.integers(1, 9))):
        parent = draw(st.none() | st.sampled_from(steps)) if steps else None
        added = draw(ids if parent else ids.filter(bool))
        bad = draw(st.sampled_from([None, None, None, *UNTRAINABLE]))
        changes = {} if bad is None or bad == "logprob not finite" else UNTRAINABLE[bad]
        role = draw(st.sampled_from(["main", "main", "other"]))
        steps.append(step(f"c{k}", parent, added, draw(ids), **({"role": role, "index": k} | changes)))
    return steps


@settings(max_examples=300, deadline=None)
@given(token_trees(), st.sampled_from(["main", "other"]))
def test_every_trainable_sampled_token_is_a_target_exactly_once_in_its_own_context(steps, role):
    by_key = {s.key: s for s in steps}
    own = tuple(s for s in steps if s.role == role)
    rows, counts = rows_of(*steps, own=own)
    trainable = [
        s
        for s in own
        if s.untrainable is None
        and s.route == "policy"
        and s.status == "ok"
        and s.sampling == SamplingParams()
        and s.completion_ids
    ]
    origin = {lp: (s, k) for s in trainable for k, lp in enumerate(s.logprobs)}
    found: list[float] = []
    for row in rows:
        for at in np.flatnonzero(row.mask):
            logprob = float(row.logprobs[at])
            sampled, k = origin[logprob]
            prompt = stream(sampled, by_key)[: -len(sampled.completion_ids)]
            assert row.tokens[: at + 1].tolist() == [*prompt, *sampled.completion_ids[: k + 1]]
            assert row.versions[at] == sampled.versions[k]
            assert row.advantages[at] == 1.5
            found.append(logprob)
    assert sorted(found) == sorted(origin)
    assert counts.target_tokens == len(origin)
    assert sum(counts.untrainable_steps.values()) == len(own) - len(trainable)
    ancestors = {p for s in trainable for p in lineage(s, by_key)}
    leaves = [s for s in trainable if s.key not in ancestors]
    assert sorted(r.tokens.tolist() for r in rows) == sorted(stream(s, by_key) for s in leaves)


def lineage(child: Step, by_key: dict[str, Step]) -> list[str]:
    return [] if child.parent is None else [child.parent, *lineage(by_key[child.parent], by_key)]


@settings(max_examples=200, deadline=None)
@given(token_trees(), st.randoms(use_true_random=False))
def test_rows_do_not_depend_on_call_ids_or_on_the_order_of_arrival(steps, random):
    left, arrived = list(steps), []
    while left:
        ready = [s for s in left if s.parent is None or s.parent in {a.key for a in arrived}]
        chosen = random.choice(ready)
        left.remove(chosen)
        arrived.append(chosen)
    names = {s.key: f"call-{random.randrange(10**6)}-{k}" for k, s in enumerate(arrived)}
    renamed = [
        s.model_copy(update={"call_id": names[s.key], "index": k, "parent": s.parent and names[s.parent]})
        for k, s in enumerate(arrived)
    ]
    assert plain(rows_of(*steps)[0]) == plain(rows_of(*renamed)[0])


def test_counts_add_up():
    one = RowCounts(1, 2, 30, Counter(edited=1), Counter(a=1))
    two = RowCounts(1, 1, 12, Counter(edited=2, template=1), Counter())
    assert one + two == RowCounts(2, 3, 42, Counter(edited=3, template=1), Counter(a=1))
