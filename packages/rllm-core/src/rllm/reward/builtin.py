"""The built-in graders: they compare what the agent returned with the task's answer."""

from __future__ import annotations

__all__ = ["contains", "exact", "number"]

import re
from fractions import Fraction
from typing import TYPE_CHECKING

from rllm.hookspecs import hookimpl
from rllm.tasks.text import as_text, last_number, normalise
from rllm.types import Episode, Reward, Task

if TYPE_CHECKING:
    from rllm.plugins import Register


def exact(task: Task, episode: Episode) -> bool:
    """1 where the output is the answer, but for case and white space.

    >>> exact(Task(id="1", answer="Paris"), Episode(output=" paris\\n"))
    True
    """
    return normalise(as_text(episode.output)) == _answer(task, "exact")


def contains(task: Task, episode: Episode) -> bool:
    """1 where the answer stands in the output, as whole words, but for case and white space.

    >>> contains(Task(id="1", answer="7"), Episode(output="It is 7.")), contains(
    ...     Task(id="1", answer="7"), Episode(output="It is 17.")
    ... )
    (True, False)
    """
    answer = re.escape(_answer(task, "contains"))
    return re.search(rf"(?<!\w){answer}(?!\w)", normalise(as_text(episode.output))) is not None


def number(task: Task, episode: Episode) -> Reward:
    """1 where the last number of the output equals the answer, exactly; the signal ``answered`` says if it has one.

    >>> number(Task(id="1", answer=70_000), Episode(output="so it costs $70,000.")).is_correct
    True
    """
    wanted, found = _wanted_number(task), last_number(as_text(episode.output))
    is_correct = found == wanted
    return Reward(value=float(is_correct), is_correct=is_correct, signals={"answered": float(found is not None)})


def _answer(task: Task, grader: str) -> str:
    answer = normalise(as_text(task.answer))
    if not answer:
        raise ValueError(f"the task has no answer, and the grader {grader!r} compares with it")
    return answer


def _wanted_number(task: Task) -> Fraction:
    wanted = None if isinstance(task.answer, bool) else last_number(as_text(task.answer))
    if wanted is None:
        raise ValueError(f"the task's answer is {task.answer!r:.80}, which is no number; use another grader")
    return wanted


@hookimpl
def rllm_register_evaluators(register: Register) -> None:
    register("exact", exact, summary="the output is the answer, but for case and white space")
    register("contains", contains, summary="the answer stands in the output as whole words")
    register("number", number, summary="the output's last number equals the answer")
