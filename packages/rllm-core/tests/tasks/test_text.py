"""Which number a reply ends with, and when two texts are the same: against what users have met elsewhere."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm.tasks.text import is_number, last_number, normalise, plain_number


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("The price is $29.00.", 29),  # lm-evaluation-harness 3214
        ("So the total is\n$70,000", 70_000),  # opencompass 2426
        ("The example ended with #### 12, mine:\n#### 40", 40),  # lm-evaluation-harness 3438
        ("#### 12 was the example\n#### 40\nsince 3 boxes are left", 40),
        ("#### $1,200.50 .", Fraction("1200.5")),
        ("#### Step 2: add\nso it is 17", 17),  # a heading of Markdown is no answer
        ("10-3", 3),
        ("x = -3", -3),
        ("x=−3", -3),  # the sign that is not a hyphen
        ("between (5)-3", 3),
        ("-$5", -5),
        ("it costs €1,234,567.89!", Fraction("1234567.89")),
        ("1, 2, 3", 3),
        ("12,34", 34),  # no thousands: two numbers
        ("half, so 1/2", Fraction(1, 2)),
        ("1/0", 0),
        (".5", Fraction(1, 2)),
        ("1.5e3", 1500),
        ("2.5E-2", Fraction(1, 40)),
        ("**40**", 40),
        ("about 50%", 50),
        ("１２", 12),  # full-width digits
        ("no number", None),
        ("", None),
        ("9" * 5000, None),
    ],
)
def test_a_reply_ends_with_the_number_that_a_person_would_read(reply, number):
    assert last_number(reply) == number


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**12), max_value=10**12))
def test_a_decimal_is_read_as_python_reads_it_with_and_without_commas(value):
    assert last_number(f"it is {value:f}.") == Fraction(value)
    assert last_number(f"it is {value:,f}.") == Fraction(value)


@given(st.integers(-(10**30), 10**30), st.integers(0, 12), st.integers(0, 12))
def test_a_plain_number_names_the_same_value_without_needless_zeros(numerator, twos, fives):
    value = Fraction(numerator, 2**twos * 5**fives)
    text = plain_number(value)
    assert Fraction(text) == value
    assert "/" not in text
    assert not ("." in text and text.endswith("0"))


@given(st.fractions())
def test_a_plain_number_can_be_read_again(value):
    assert last_number(plain_number(value)) == value


@given(st.text(alphabet="0123456789,.-+/e$# \n"))
def test_any_mixture_of_digits_and_signs_can_be_read(text):
    number = last_number(text)
    assert (number is None) == (not any(c.isdigit() for c in text))


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("Paris", " paris\n", True),
        ("a  b", "a\tb", True),
        ("ﬁne", "FINE", True),
        ("ab", "a b", False),
        ("7", "7.", False),
    ],
)
def test_case_spacing_and_typography_do_not_make_another_text(one, other, are_same):
    assert (normalise(one) == normalise(other)) is are_same


@pytest.mark.parametrize("text", ["2020-01-31", "12 eggs", "1, 2", "", "x", "3 4"])
def test_more_than_a_number_is_no_number(text):
    assert not is_number(text)


@pytest.mark.parametrize("text", ["12", " -3.5 ", "$70,000", "1/3", "29.", "1e5"])
def test_a_number_however_it_is_written_is_one(text):
    assert is_number(text)
