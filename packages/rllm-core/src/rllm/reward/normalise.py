"""What an evaluator returned, as a ``Reward``: the one place that says what is accepted."""

__all__ = ["as_reward"]

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from rllm.errors import EvaluatorError
from rllm.types import Reward

ACCEPTED = (
    "Return a bool, a finite number, a tuple (value, is_correct), an rllm.Reward, or None where there is no grade"
)


def as_reward(value: Any, *, evaluator: str = "the evaluator", task_id: str = "") -> Reward | None:
    """The reward that ``value`` means; None, which is no grade, stays None.

    True is 1, False is 0, and of a bool the correctness is known too. Raises EvaluatorError for NaN, infinity, text,
    a tuple of another length, or anything else; it names ``evaluator`` and the task.
    """
    try:
        return _as_reward(value)
    except (ValueError, OverflowError) as error:
        task = f" for task {task_id!r}" if task_id else ""
        raise EvaluatorError(f"{evaluator} returned {value!r:.200}{task}: {error}. {ACCEPTED}") from error


def _as_reward(value: Any) -> Reward | None:
    if value is None:
        return None
    if isinstance(value, Reward):
        return _checked(value)
    if _is_bool(value):
        return Reward(value=float(value), is_correct=bool(value))
    if isinstance(value, tuple):
        return _from_tuple(value)
    return Reward(value=_number(value, "the value"))


def _from_tuple(value: tuple[Any, ...]) -> Reward:
    if len(value) != 2:
        raise ValueError(f"a tuple has the two entries (value, is_correct), this one has {len(value)}")
    number, is_correct = value
    if is_correct is not None and not _is_bool(is_correct):
        raise ValueError(f"is_correct is {is_correct!r:.80}, not a bool")
    return Reward(value=_number(number, "the value"), is_correct=None if is_correct is None else bool(is_correct))


def _checked(reward: Reward) -> Reward:
    """NaN and infinity have no place in a reward, wherever they stand in it."""
    _number(reward.value, "value")
    parts: Mapping[str, Mapping[str, float]] = {
        "signals": reward.signals,
        "by_role": reward.by_role,
        "by_step": reward.by_step,
    }
    for name, numbers in parts.items():
        for key, number in numbers.items():
            _number(number, f"{name}[{key!r}]")
    return reward


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def _number(value: Any, name: str) -> float:
    """Any real number, NumPy's included, as a finite float."""
    if not isinstance(value, Real):
        raise ValueError(f"{name} is a {type(value).__name__}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}, not finite")
    return number
