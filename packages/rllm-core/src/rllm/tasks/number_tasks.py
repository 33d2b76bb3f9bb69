"""The number tasks of reasoning-gym with the defaults that suit a small model, graded by
the number that a reply ends with.
"""

from __future__ import annotations

__all__ = ["NUMBER_TASKS"]

from typing import Any, Literal

from rllm.tasks.gym import GymTask


def _terms(terms: tuple[int, int], digits: tuple[int, int], **more: Any) -> dict[str, Any]:
    return {
        "min_terms": terms[0],
        "max_terms": terms[1],
        "min_digits": digits[0],
        "max_digits": digits[1],
        **more,
    }


NUMBER_TASKS = (
    GymTask(
        "chain_sum",
        "sums and differences, two terms of one digit unless set otherwise (200 questions in all)",
        _terms((2, 2), (1, 1), allow_negation=False),
        size=200,
        held_out=64,
    ),
    GymTask(
        "decimal_chain_sum",
        "sums and differences of decimals",
        _terms((2, 2), (1, 1), min_decimal_places=1, max_decimal_places=1, allow_negation=False),
    ),
    GymTask(
        "products",
        "products of two numbers of one digit (100 questions in all)",
        _terms((2, 2), (1, 1), allow_negation=False),
        size=100,
        held_out=32,
    ),
    GymTask(
        "gcd",
        "greatest common divisors",
        {"min_numbers": 2, "max_numbers": 2, "min_value": 1, "max_value": 100},
    ),
    GymTask(
        "lcm",
        "least common multiples",
        {"min_numbers": 2, "max_numbers": 2, "min_value": 1, "max_value": 20},
        size=200,
        held_out=64,
    ),
    GymTask(
        "basic_arithmetic",
        "expressions with + - * / and parentheses",
        _terms(
            (2, 3),
            (1, 1),
            operators=("+", "-", "*", "/"),
            allow_parentheses=True,
            allow_negation=False,
            format_style="simple",
            whitespace="single",
        ),
        # The generator takes any text for these two, and makes something else of it.
        types={"format_style": Literal["simple", "natural"], "whitespace": Literal["no_space", "single", "random"]},
        size=1_000,
    ),
    GymTask(
        "decimal_arithmetic",
        "expressions of decimals, to a number of significant digits",
        {"min_num_decimal_places": 1, "max_num_decimal_places": 1, "min_terms": 2, "max_terms": 2, "precision": 6},
    ),
    GymTask(
        "simple_equations",
        "linear equations in one unknown",
        {
            "min_terms": 2,
            "max_terms": 2,
            "min_value": 1,
            "max_value": 10,
            "operators": ("+", "-", "*"),
            "operators_weights": (0.4, 0.4, 0.2),
        },
    ),
    GymTask("count_bits", "how many binary digits are 1", {"min_n": 1, "max_n": 10_000}),
    GymTask("count_primes", "how many primes lie between two numbers", {"min_n": 1, "max_n": 100}),
    GymTask(
        "leg_counting",
        "how many legs some animals have together",
        {"min_animals": 2, "max_animals": 3, "min_instances": 1, "max_instances": 5},
        max_tokens=64,
    ),
    GymTask("letter_counting", "how often a letter stands in a text", {"min_words": 3, "max_words": 5}),
    GymTask(
        "number_sequence",
        "the next number of a sequence",
        {"min_terms": 4, "max_terms": 6, "min_value": -20, "max_value": 20, "max_complexity": 2},
    ),
    GymTask(
        "power_function",
        "powers, to three significant figures",
        {"min_base": -10.0, "max_base": 10.0, "min_exponent": 0, "max_exponent": 3},
        max_tokens=32,
    ),
)
"""Each name is reasoning-gym's own."""
