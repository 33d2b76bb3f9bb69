"""The grader of gsm8k takes the number in the asked-for form, and one number only."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm.tasks.gsm8k import grade_marked_number, marked_number
from rllm.types import Episode, Task


def grade(answer: str, output: object):
    return grade_marked_number(Task(id="1", answer=answer), Episode(output=output))


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        ("18", "9 * 2 = 18\n#### 18"),
        ("70000", "#### $70,000.00"),
        ("50", "#### 50%"),
        ("40", "#### 12 was the example. Mine:\n#### 40\nbecause of the 3 boxes"),
        ("-3", "#### −3"),
        ("18", "####18."),
        ("18", "#### **18**"),
        ("18", "#### $18$"),
        ("0.5", "#### 1/2"),
        ("29", "#### 29.00"),
        ("18", "<think>\n#### 17\n</think>\n#### 18"),
        ("18", "#### １８"),
    ],
)
def test_the_right_number_in_the_asked_form_is_right(answer, output):
    reward = grade(answer, output)
    assert (reward.value, reward.is_correct, reward.signals) == (1.0, True, {"answered": 1.0, "number": 1.0})


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        ("18", "#### 17"),
        ("18", "#### 18\n#### 17"),
        ("18", "#### 18 or 17"),
        ("18", "#### 17, 18"),
        ("18", "#### 17 18"),
        ("18", "#### 10+8"),
        ("18", "#### 1,8"),
        ("1234", "#### 1.234"),
        ("1234", "#### 12,34"),
        ("18", "#### -18"),
        ("18", "#### 018018"),
        ("18", "#### 18\n####"),
        ("18", "#### 18 #### 17"),
        ("18", "##### 18"),
        ("18", "The answer is 18."),
        ("18", "<think>#### 18"),
        ("18", "#### N"),
        ("18", "#### 1.8e1e1"),
        ("18", "#### " + "9" * 10_000),
        ("18", "#### 18" + "0" * 5_000),
        ("18", "#" * 100_000),
        ("18", "#### 18/0"),
        ("18", ""),
        ("18", None),
    ],
)
def test_anything_else_is_wrong(answer, output):
    assert grade(answer, output).value == 0.0


def test_a_right_number_without_the_form_is_seen_and_not_rewarded():
    assert grade("18", "The answer is 18.").signals == {"answered": 0.0, "number": 1.0}


@given(st.integers(-(10**12), 10**12), st.integers(0, 4))
def test_a_number_reads_the_same_however_it_is_written(n, zeros):
    decimals = f".{'0' * zeros}" if zeros else ""
    for text in (f"{n}{decimals}", f"{n:,}{decimals}", f"${n:,}{decimals}", f"  {n}{decimals} %."):
        assert marked_number(f"so\n#### {text}") == Fraction(n)


def test_a_task_without_a_number_is_refused():
    with pytest.raises(ValueError, match="which is no number"):
        grade("many", "#### 1")
