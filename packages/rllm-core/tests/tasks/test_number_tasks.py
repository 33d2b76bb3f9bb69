"""The number tasks of reasoning-gym: right answers score 1, questions are never shared, settings are honoured."""

import collections
import dataclasses
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllm.errors import ConfigError, TaskError
from rllm.tasks import load_task_source
from rllm.tasks.number_tasks import NUMBER_TASKS
from rllm.types import Episode, Task

BY_NAME = {task.name: task for task in NUMBER_TASKS}
by_task = pytest.mark.parametrize("name", sorted(BY_NAME))


def grade(source, task, output):
    return source.evaluator(task, Episode(task=task, output=output))


@pytest.fixture(scope="module")
def sources():
    return {name: load_task_source(name) for name in BY_NAME}


@by_task
def test_the_right_answer_scores_1_and_another_number_0(sources, name):
    source = sources[name]
    for task in [*source.train()[:50], *source.held_out()[:50]]:
        for reply in (task.answer, f"Let me see: 1 + 1 = 2, so it is {task.answer}.", f"#### {task.answer}"):
            assert grade(source, task, reply).value == 1.0
        wrong = grade(source, task, f"It is {Fraction(task.answer) * 3 + 7}.")
        assert (wrong.value, wrong.is_correct, wrong.signals) == (0.0, False, {"answered": 1.0})


@by_task
def test_a_reply_without_a_number_scores_0_and_counts_as_unanswered(sources, name):
    source = sources[name]
    for reply in ("I don't know.", "", None):
        graded = grade(source, source.train()[0], reply)
        assert (graded.value, graded.signals) == (0.0, {"answered": 0.0})


@by_task
def test_the_defaults_hold_as_many_different_questions_as_they_say(sources, name):
    task, source = BY_NAME[name], sources[name]
    train, held_out = ({t.prompt for t in part} for part in (source.train(), source.held_out()))
    assert (len(train), len(held_out)) == (task.size - task.held_out, task.held_out)
    assert not train & held_out


@by_task
def test_a_task_survives_json(sources, name):
    for task in sources[name].train()[:20]:
        assert Task.model_validate_json(task.model_dump_json()) == task


@by_task
def test_the_settings_are_those_of_the_generator(name):
    from reasoning_gym.factory import DATASETS

    _, config = DATASETS[name]
    theirs = {f.name for f in dataclasses.fields(config)} - {"seed", "size"}
    assert set(BY_NAME[name].options) == theirs
    assert set(BY_NAME[name].settings.model_fields) == theirs | {"size", "held_out", "data_seed"}


def test_digits_of_the_right_number_within_a_wrong_one_earn_nothing(sources):
    source = sources["chain_sum"]
    task = next(t for t in source.train() if t.answer == "1")
    assert [grade(source, task, reply).value for reply in ("1", "1.0", "01", "13", "-1", "1 or 2")] == [
        1,
        1,
        1,
        0,
        0,
        0,
    ]


def test_chain_sum_asks_every_sum_of_two_digits_once(sources):
    """All 10 × 10 pairs with either sign, and their results by Python's own arithmetic."""
    source = sources["chain_sum"]
    asked = {}
    for task in [*source.train(), *source.held_out()]:
        expression = task.prompt.partition(": ")[2].partition(" =")[0]
        asked[expression] = task.answer
        assert task.prompt.endswith("\nAnswer with only the final number.")
    expected = {f"{a} {s} {b}": str(a + b if s == "+" else a - b) for a in range(10) for b in range(10) for s in "+-"}
    assert asked == expected
    assert (len(source.train()), len(source.held_out()), source.agent) == (136, 64, "chat")


@given(st.integers(0, 2**31), st.sampled_from(["chain_sum", "products", "gcd", "count_bits"]), st.data())
@settings(deadline=None, max_examples=40)
def test_no_question_is_on_both_sides_for_any_seed_and_size(seed, name, data):
    size = data.draw(st.integers(1, 60))
    held_out = data.draw(st.integers(0, size) | st.floats(0, 1))
    source = load_task_source(name, {"size": size, "data_seed": seed, "held_out": held_out})
    train, validation = ([t.prompt for t in part] for part in (source.train(), source.held_out()))
    assert not set(train) & set(validation)
    assert len({*train, *validation}) == len(train) + len(validation) == size


def test_the_data_seed_alone_decides_what_is_drawn():
    first, again, other = (load_task_source("gcd", {"data_seed": s, "size": 50, "held_out": 10}) for s in (1, 1, 2))
    assert first.train() == again.train()
    assert first.held_out() == again.held_out()
    shared = {t.prompt for t in first.train()} & {t.prompt for t in other.train()}
    assert len(shared) < 20


def test_settings_reach_the_generator():
    long = {"min_terms": 4, "max_terms": 4, "min_digits": 3, "max_digits": 3}
    source = load_task_source("chain_sum", long | {"size": 20, "held_out": 0.5})
    assert len(source.held_out()) == 10
    for task in source.train():
        terms = task.prompt.partition(": ")[2].partition(" =")[0].replace("-", "+").split(" + ")
        assert [len(t) for t in terms] == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("name", "settings", "error", "message"),
    [
        (
            "chain_sum",
            {"min_terms": 3},
            ConfigError,
            r"chain_sum.min_terms=3, chain_sum.max_terms=2 won't do: max_terms must be >= min_terms",
        ),
        ("chain_sum", {"min_digits": 0}, ConfigError, "chain_sum.min_digits=0 won't do: min_digits must be positive"),
        ("chain_sum", {"max_digits": "two"}, ConfigError, "chain_sum.max_digits='two' won't do"),
        ("chain_sum", {"max_digit": 2}, ConfigError, "no setting 'chain_sum.max_digit'.*'chain_sum.max_digits'"),
        (
            "chain_sum",
            {"size": 201},
            TaskError,
            r"chain_sum.size=201, but only 200 different questions came up .* Lower chain_sum.size to 200, or widen",
        ),
        ("chain_sum", {"size": 0}, ConfigError, "chain_sum.size=0 won't do"),
        ("chain_sum", {"held_out": 201}, TaskError, "held_out=201, but there are only 200 different questions"),
        ("chain_sum", {"held_out": 1.01}, ConfigError, "chain_sum.held_out.*between 0 and 1"),
        ("chain_sum", {"data_seed": -1}, ConfigError, "chain_sum.data_seed=-1 won't do"),
        ("basic_arithmetic", {"whitespace": "tabs"}, ConfigError, "basic_arithmetic.whitespace='tabs' won't do"),
        ("basic_arithmetic", {"operators": ["+", "%"]}, ConfigError, "basic_arithmetic.operators="),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(name, settings, error, message):
    with pytest.raises(error, match=message):
        load_task_source(name, settings)


@by_task
def test_no_constant_answer_is_right_for_most_questions(sources, name):
    """Where it is, a rising reward shows no skill: letter_counting has .73 for "1" with reasoning-gym's defaults."""
    answers = collections.Counter(t.answer for t in sources[name].held_out())
    assert max(answers.values()) / answers.total() < 0.6


def test_without_reasoning_gym_the_tasks_are_listed_and_making_them_says_what_to_install():
    script = (
        "import sys; sys.modules['reasoning_gym'] = None\n"
        "from rllm.errors import TaskError; from rllm.plugins import get_plugins\n"
        "from rllm.tasks import load_task_source\n"
        "assert 'chain_sum' in get_plugins().names('task')\n"
        "try: load_task_source('chain_sum')\n"
        "except TaskError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "the task 'chain_sum' needs reasoning-gym" in done.stdout
    assert 'pip install "rllm-core[train]"' in done.stdout


def test_registering_the_tasks_imports_neither_reasoning_gym_nor_torch():
    script = (
        "import sys; from rllm.plugins import get_plugins; get_plugins().names('task'); import rllm; rllm.evaluator\n"
        "get_plugins().names('evaluator'); print([m for m in ('reasoning_gym', 'torch', 'openai') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
