"""The task letters: what is asked, what is right, and what a part of it is worth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm.errors import ConfigError, TaskError
from rllm.tasks.letters import LettersSettings, grade_letters, letters_tasks
from rllm.types import Episode, Task


def grade(said, answer="a b c d"):
    task = Task(id="t", prompt="p", answer=answer)
    return grade_letters(task, Episode(id="e", task=task, output=said))


@pytest.mark.parametrize(("rule", "said"), [("same", "a b c d"), ("reverse", "d c b a"), ("first", "a a a a")])
def test_the_answer_follows_the_rule(rule, said):
    source = letters_tasks(LettersSettings(rule=rule))
    for task in source.held_out():
        letters = task.prompt.rpartition(": ")[2].split()
        assert len(set(letters)) == 4
        assert task.answer == " ".join(letters["abcd".index(place)] for place in said.split())


def test_as_many_different_questions_are_drawn_and_held_out_as_asked_for():
    source = letters_tasks(LettersSettings(size=500, held_out=200))
    train, held_out = {t.prompt for t in source.train()}, {t.prompt for t in source.held_out()}
    assert (len(train), len(held_out), len(train & held_out)) == (300, 200, 0)


def test_the_same_seed_gives_the_same_questions_in_the_same_order():
    first, again, other = (letters_tasks(LettersSettings(data_seed=seed)).train() for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("a b c d", 1.0),
        ("  a b\nc d ", 1.0),
        ("a b", 0.5),
        ("a x c x", 0.5),
        ("b c d a", 0.0),
        ("abcd", 0.0),
        ("A b c d", 0.75),
        ("a b c d a b c d", 0.5),
        ("", 0.0),
        (None, 0.0),
    ],
)
def test_a_reply_is_worth_its_share_of_right_positions(said, value):
    assert grade(said).value == value
    assert grade(said).is_correct is (value == 1.0)


@given(st.text(alphabet="ab c", max_size=30), st.lists(st.sampled_from("abc"), min_size=1, max_size=6).map(" ".join))
def test_the_reward_lies_between_nothing_and_one_and_only_the_answer_gets_one(said, answer):
    reward = grade(said, answer)
    assert 0 <= reward.value <= 1
    assert (reward.value == 1) == (said.split() == answer.split()) == reward.is_correct


def test_no_constant_reply_is_worth_more_than_its_chance():
    held_out = letters_tasks(LettersSettings(size=8_000, held_out=4_000)).held_out()
    best = sum(
        max(sum(task.answer.split()[place] == letter for task in held_out) for letter in "abcdefghijklmnopqrstuvwxyz")
        for place in range(4)
    ) / (4 * len(held_out))
    assert best < 0.06


def test_too_few_possible_questions_are_said_before_anything_is_drawn():
    with pytest.raises(ConfigError, match=r"letters\.size=400, but with letters\.count=2 at most 325"):
        letters_tasks(LettersSettings(count=2, size=400))
    with pytest.raises(TaskError, match="held_out=300, but there are only 200"):
        letters_tasks(LettersSettings(count=2, size=200, held_out=300))
