"""What an evaluator may return, and what is refused with a sentence that says so."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm.errors import EvaluatorError
from rllm.reward import as_reward
from rllm.types import Reward


@pytest.mark.parametrize(
    ("returned", "value", "is_correct", "correct"),
    [
        (True, 1.0, True, True),
        (False, 0.0, False, False),
        (np.bool_(True), 1.0, True, True),
        (1, 1.0, None, True),
        (0.5, 0.5, None, False),
        (-1, -1.0, None, False),
        (Fraction(1, 4), 0.25, None, False),
        (np.float32(0.5), 0.5, None, False),
        (np.int64(2), 2.0, None, True),
        ((0.3, True), 0.3, True, True),
        ((1, False), 1.0, False, False),
        ((1.0, None), 1.0, None, True),
        ((True, np.bool_(True)), 1.0, True, True),
    ],
)
def test_bools_numbers_and_tuples_become_rewards(returned, value, is_correct, correct):
    reward = as_reward(returned)
    assert (reward.value, reward.is_correct, reward.correct) == (value, is_correct, correct)
    assert type(reward.value) is float


def test_a_reward_stays_as_it_is_and_none_is_no_grade():
    reward = Reward(value=0.5, signals={"length": 3.0}, by_role={"checker": -1.0}, comment="fair")
    assert as_reward(reward) is reward
    assert as_reward(None) is None


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**300), 10**300) | st.booleans())
def test_every_finite_number_is_kept_exactly(number):
    assert as_reward(number).value == float(number)
    assert as_reward(as_reward(number)) == as_reward(number)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (math.nan, "returned nan for task 't1': the value is nan, not finite"),
        (-math.inf, "the value is -inf, not finite"),
        (np.float32("nan"), "not finite"),
        (10**400, "too large"),
        ("1.0", "returned '1.0' for task 't1': the value is a str, not a number"),
        (b"1", "the value is a bytes, not a number"),
        (1j, "the value is a complex, not a number"),
        (Decimal(1), "the value is a Decimal, not a number"),
        ([1.0, True], "the value is a list, not a number"),
        ({"value": 1.0}, "the value is a dict, not a number"),
        (np.array([1.0, 2.0]), "the value is a ndarray, not a number"),
        ((1.0,), r"a tuple has the two entries \(value, is_correct\), this one has 1"),
        ((), "this one has 0"),
        ((1.0, True, "good"), "this one has 3"),
        ((1.0, "yes"), "is_correct is 'yes', not a bool"),
        ((1.0, 1), "is_correct is 1, not a bool"),
        (("good", True), "the value is a str, not a number"),
        ((math.nan, True), "the value is nan, not finite"),
        (Reward(value=math.nan), "value is nan, not finite"),
        (Reward(value=1, by_role={"checker": math.inf}), r"by_role\['checker'\] is inf, not finite"),
        (Reward(value=1, by_step={"c1": math.nan}), r"by_step\['c1'\] is nan, not finite"),
        (Reward(value=1, signals={"speed": math.nan}), r"signals\['speed'\] is nan, not finite"),
    ],
)
def test_anything_else_is_refused_with_what_is_accepted(returned, message):
    with pytest.raises(EvaluatorError, match=message) as caught:
        as_reward(returned, evaluator="the evaluator 'mine'", task_id="t1")
    assert str(caught.value).startswith("the evaluator 'mine' returned ")
    assert "Return a bool, a finite number, a tuple (value, is_correct), an rllm.Reward, or None" in str(caught.value)
