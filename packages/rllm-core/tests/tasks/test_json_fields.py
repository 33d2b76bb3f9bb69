"""The task json_fields: what is asked, what a part of the answer is worth, and that no constant is worth much."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm.tasks import load_task_source
from rllm.tasks.json_fields import grade_fields
from rllm.types import Episode, Task

TASK = Task(id="t", prompt="p", answer='{"age": 37, "city": "Rome"}')


def grade(output):
    return grade_fields(TASK, Episode(task=TASK, output=output))


@pytest.fixture(scope="module")
def source():
    return load_task_source("json_fields")


def test_the_answer_holds_the_two_asked_facts_of_the_prompt(source):
    for task in [*source.train(), *source.held_out()]:
        asked = task.prompt.split('"')[1::2]
        answer = json.loads(task.answer)
        assert list(answer) == asked
        story = task.prompt.partition(" Reply with")[0]
        assert all(str(value) in story for value in answer.values())
        assert source.evaluator(task, Episode(output=task.answer)).is_correct


def test_2000_questions_are_drawn_and_200_held_out_unless_set_otherwise(source):
    train, held_out = ({t.prompt for t in part} for part in (source.train(), source.held_out()))
    assert (len(train), len(held_out), len(train & held_out)) == (1800, 200, 0)
    other = load_task_source("json_fields", {"size": 3000, "held_out": 0.5, "data_seed": 1})
    assert len({t.prompt for t in other.train()} - train) == 1500


@pytest.mark.parametrize(
    ("output", "value"),
    [
        ('{"age": 37, "city": "Rome"}', 1.0),
        (' {\n "city": "ROME",\n "age": "37"\n}\n', 1.0),
        ('```json\n{"age": 37, "city": "Rome"}\n```', 0.5),  # right, but not alone
        ('{"age": 37, "city": "Rome"} {}', 0.5),
        ('{"age": 38, "city": "Rome"}', 0.4 + 0.6 / 2),
        ('{"city": "Rome"}', 0.4 / 2 + 0.6 / 2),
        ('{"age": 37, "city": "Rome", "job": "nurse"}', 0.4 * 2 / 3 + 0.6),
        ('{"age": 1, "city": "x"}', 0.4),
        ('{"Age": 37, "town": "Rome"}', 0.0),
        ('{"age": [37], "city": {"name": "Rome"}}', 0.4),
        ('{"age": {"city": "Rome"}', 0.5 * (0.4 / 2 + 0.6 / 2)),  # broken; an object stands inside
        ("{}", 0.0),
        ("[37, 1]", 0.0),
        ("Rome, 37", 0.0),
        ("", 0.0),
        (None, 0.0),
        ('{"age": ' * 1500, 0.0),
    ],
)
def test_a_part_of_the_answer_is_worth_its_part(output, value):
    graded = grade(output)
    assert graded.value == pytest.approx(value)
    assert graded.is_correct is (value == 1.0)


@given(st.text(alphabet='{}[]":, ageciyRom37\n') | st.text())
def test_any_reply_is_worth_from_0_to_1(output):
    assert 0.0 <= grade(output).value <= 1.0


@given(st.dictionaries(st.sampled_from(["age", "city", "job"]), st.integers() | st.booleans() | st.text()))
def test_only_the_right_values_under_the_right_keys_are_correct(answer):
    graded = grade(json.dumps(answer))
    assert graded.is_correct is (graded.value == 1.0)
    assert graded.value < 1.0 or set(answer) == {"age", "city"}


def test_no_constant_answer_is_worth_a_quarter(source):
    """Over all sets of keys, each with the value that is right most often."""
    held_out = [(t, json.loads(t.answer)) for t in source.held_out()]
    best = {}
    for key in ("name", "age", "city", "job", "pet", "food"):
        values = [answer[key] for _, answer in held_out if key in answer]
        best[key] = max(set(values), key=values.count)
    for count in range(len(best) + 1):
        for keys in itertools.combinations(best, count):
            output = json.dumps({key: best[key] for key in keys})
            rewards = [source.evaluator(task, Episode(output=output)).value for task, _ in held_out]
            assert sum(rewards) / len(rewards) < 0.25
