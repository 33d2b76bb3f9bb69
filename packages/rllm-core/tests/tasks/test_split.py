"""No question ever stands on both sides, whatever the seed, the share, the order, and however it is spelled."""

import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from rllm.errors import TaskError
from rllm.tasks import HeldOut, ListedTasks, question_key, split_by_question
from rllm.types import Task


def make(prompts):
    return [Task(id=str(n), prompt=p) for n, p in enumerate(prompts)]


prompts = st.lists(st.sampled_from([f"{a} + {b}?" for a in range(4) for b in range(4)]), min_size=1, max_size=60)


@given(prompts, st.integers(), st.floats(0, 1))
def test_a_share_is_split_by_question(questions, seed, share):
    tasks = make(questions)
    train, held_out = split_by_question(tasks, share, seed=seed, where="x")
    assert {t.prompt for t in train}.isdisjoint(t.prompt for t in held_out)
    assert sorted([*train, *held_out], key=lambda t: int(t.id)) == tasks
    assert abs(len({t.prompt for t in held_out}) - share * len(set(questions))) <= 0.5


@given(prompts, st.integers(0, 20), st.data())
def test_a_count_is_a_count_of_questions(questions, seed, data):
    tasks = make(questions)
    count = data.draw(st.integers(0, len(set(questions))))
    _, held_out = split_by_question(tasks, count, seed=seed, where="x")
    assert len({t.prompt for t in held_out}) == count


@given(prompts, st.integers(0, 20), st.randoms(use_true_random=False))
def test_the_order_of_the_tasks_does_not_matter(questions, seed, shuffler):
    tasks = make(questions)
    _, held_out = split_by_question(tasks, 0.5, seed=seed, where="x")
    shuffled = random.Random(shuffler.random()).sample(tasks, len(tasks))
    _, again = split_by_question(shuffled, 0.5, seed=seed, where="x")
    assert {t.id for t in again} == {t.id for t in held_out}


def test_seeds_hold_out_different_questions():
    tasks = make([str(n) for n in range(100)])
    first, second = ({t.id for t in split_by_question(tasks, 30, seed=s, where="x")[1]} for s in (0, 1))
    assert first != second


def test_case_spacing_and_width_make_no_other_question():
    same = make(["What is 3 + 4?", " what  is 3 + 4?\n", "WHAT IS ３ + 4?"])
    assert len({question_key(t) for t in same}) == 1
    train, held_out = split_by_question([*same, Task(id="other", prompt="another")], 1, seed=0, where="x")
    assert {len(train), len(held_out)} == {1, 3}


def test_without_a_prompt_the_data_are_the_question():
    a, b = Task(id="1", data={"n": 1}), Task(id="2", data={"n": 2})
    assert question_key(a) != question_key(b)
    assert question_key(a) == question_key(a.model_copy(update={"id": "3"}))


def test_the_split_is_the_same_in_every_process():
    script = (
        "from rllm.tasks import split_by_question; from rllm.types import Task\n"
        "tasks = [Task(id=str(n), prompt=f'question {n}') for n in range(50)]\n"
        "print([t.id for t in split_by_question(tasks, 10, seed=3, where='')[1]])"
    )
    outputs = {
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(outputs) == 1


def test_more_than_there_are_can_not_be_held_out():
    with pytest.raises(TaskError, match=r"my tasks: held_out=9, but there are only 2 different questions"):
        split_by_question(make(["a", "b", "A"]), 9, seed=0, where="my tasks")


@pytest.mark.parametrize("value", [-1, 1.5, -0.1, float("nan"), float("inf"), "some"])
def test_what_is_no_share_and_no_count_is_refused(value):
    with pytest.raises(ValidationError):
        TypeAdapter(HeldOut).validate_python(value)


def test_a_source_refuses_a_question_on_both_sides_and_an_id_twice():
    with pytest.raises(TaskError, match="question of the held-out task 'b' is also trained on, as task 'a'"):
        ListedTasks("s", (Task(id="a", prompt="Who?"),), (Task(id="b", prompt="who?"),))
    with pytest.raises(TaskError, match="two tasks have the id 'a'"):
        ListedTasks("s", (Task(id="a", prompt="Who?"), Task(id="a", prompt="What?")))
