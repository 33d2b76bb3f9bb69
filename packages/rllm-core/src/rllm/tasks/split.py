"""Which tasks are held out: decided per question, so that no question is ever on both sides.

Small question spaces make this matter: two draws of a hundred sums share most of them, whatever their seeds.
"""

__all__ = ["HeldOut", "draw_questions", "question_key", "question_of", "split_by_question", "without_questions"]

import hashlib
import json
import math
import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator

from rllm.errors import TaskError
from rllm.tasks.text import normalise
from rllm.types import Task


def _is_share_or_count(value: int | float) -> int | float:
    if isinstance(value, float) and not (math.isfinite(value) and 0 <= value <= 1):
        raise ValueError("a share of the questions lies between 0 and 1 (write a whole number for a count)")
    if value < 0:
        raise ValueError("a count of questions can't be negative")
    return value


HeldOut = Annotated[int | float, AfterValidator(_is_share_or_count)]
"""How many questions are held out: a whole number is a count, a number with a point a share of them (1.0 is all)."""


def question_key(task: Task) -> str:
    """What makes two tasks the same question: the prompt but for case and spacing; without one, the task's data."""
    return normalise(task.prompt) or json.dumps([task.data, task.answer], sort_keys=True, default=str)


def split_by_question(
    tasks: Sequence[Task], held_out: int | float, *, seed: int, where: str
) -> tuple[list[Task], list[Task]]:
    """The tasks to train on and the held-out ones, each in the order given; all tasks of a question go to one side.

    Questions are ranked by a hash of the seed and their text, and the first ones are held out: the same in every
    process, whatever the tasks' order. Raises TaskError (beginning with ``where``) if fewer questions exist than are
    to be held out.
    """
    ranked = sorted({question_key(task) for task in tasks}, key=lambda key: (_rank(seed, key), key))
    count = round(held_out * len(ranked)) if isinstance(held_out, float) else held_out
    if count > len(ranked):
        raise TaskError(f"{where}: held_out={held_out}, but there are only {len(ranked)} different questions. Lower it")
    chosen = set(ranked[:count])
    train = [task for task in tasks if question_key(task) not in chosen]
    return train, [task for task in tasks if question_key(task) in chosen]


def draw_questions(tasks: Sequence[Task], size: int | float | None, *, seed: int, where: str) -> list[Task]:
    """Tasks of ``size`` different questions (None: of all), in the order given; which ones follows from the seed.

    Raises TaskError (naming the setting ``where``) where there are fewer.
    """
    if size is None:
        return [*tasks]
    n_questions = len({question_key(task) for task in tasks})
    if isinstance(size, int) and size > n_questions:
        raise TaskError(f"{where}={size}, but there are only {n_questions} different questions. Lower it")
    return split_by_question(tasks, size, seed=seed, where=where)[1]


def without_questions(tasks: Sequence[Task], held_out: Sequence[Task]) -> list[Task]:
    """The tasks whose question is none of ``held_out``, nor one that differs only in case, spaces and punctuation.

    Public data sets have a few questions twice, now and then in both of their splits.
    """
    known = {question_of(task) for task in held_out}
    return [task for task in tasks if question_of(task) not in known]


def question_of(task: Task) -> str:
    """A task's question, without what does not make another of it: case, spaces, punctuation."""
    return " ".join(re.findall(r"[^\W_]+|[-+*/=<>^%]", normalise(task.prompt)))


def _rank(seed: int, key: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{key}".encode()).digest()
