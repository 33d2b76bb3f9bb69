"""Streams come back from what each step adds to its parent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm.errors import TraceStoreError
from rllm.trace import prompt_ids, steps_by_key, stream_ids
from rllm.types import Step

ids = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)


def make(call_id: str, index: int, parent: str | None, added: tuple[int, ...], sampled: tuple[int, ...]) -> Step:
    return Step(
        call_id=call_id,
        session_id="s",
        index=index,
        parent=parent,
        added_ids=added,
        completion_ids=sampled,
        logprobs=(-0.5,) * len(sampled),
        versions=(0,) * len(sampled),
    )


@given(st.lists(st.tuples(st.integers(0, 100), ids, ids), max_size=12))
def test_any_tree_of_conversations_comes_back(turns):
    """Each turn continues any earlier one or none; the truth is the whole stream, kept beside."""
    steps: list[Step] = []
    truth: list[list[int]] = []
    prompts: list[list[int]] = []
    for index, (choice, added, sampled) in enumerate(turns):
        parent = choice % (index + 1) - 1
        before = truth[parent] if parent >= 0 else []
        prompts.append([*before, *added])
        truth.append([*before, *added, *sampled])
        steps.append(make(f"c{index}", index, f"c{parent}" if parent >= 0 else None, added, sampled))
    by_key = steps_by_key(reversed(steps))
    assert [prompt_ids(step, by_key) for step in steps] == prompts
    assert [stream_ids(step, by_key) for step in steps] == truth


def test_a_choice_can_be_continued():
    first = make("a", 0, None, (1,), (2,))
    second = first.model_copy(update={"choice": 1, "completion_ids": (3,)})
    child = make("b", 1, "a/1", (4,), ())
    assert prompt_ids(child, steps_by_key([first, second, child])) == [1, 3, 4]


def test_a_session_of_thousands_of_turns_comes_back():
    steps = [make(str(i), i, str(i - 1) if i else None, (2 * i,), (2 * i + 1,)) for i in range(5000)]
    assert stream_ids(steps[-1], steps_by_key(steps)) == list(range(10000))


def test_a_missing_parent_is_named():
    child = make("b", 1, "a", (4,), ())
    with pytest.raises(TraceStoreError, match=r"'b' of session 's'.*'a' is not among"):
        prompt_ids(child, steps_by_key([child]))


def test_a_circle_is_named():
    a, b = make("a", 0, "b", (1,), ()), make("b", 1, "a", (2,), ())
    with pytest.raises(TraceStoreError, match="is its own ancestor"):
        prompt_ids(a, steps_by_key([a, b]))


def test_a_call_recorded_twice_is_named():
    step = make("a", 0, None, (1,), ())
    with pytest.raises(TraceStoreError, match="'a' of session 's' was recorded twice"):
        steps_by_key([step, step])
