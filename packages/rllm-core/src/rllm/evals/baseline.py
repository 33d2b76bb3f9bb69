"""What an answer scores that never looks at the question: the bar below which nothing was learnt."""

__all__ = ["best_constant_answer"]

from collections import Counter
from collections.abc import Sequence

import numpy as np

from rllm.errors import EvaluatorError
from rllm.protocols import Evaluator
from rllm.reward import grade
from rllm.types import Episode, Task

_TRIED = 20
"""Of the most common reference answers."""


async def best_constant_answer(
    tasks: Sequence[Task], evaluator: Evaluator, *, timeout_s: float
) -> tuple[str, float] | None:
    """The reference answer that, given to every question, earns the highest mean reward, and that reward.

    None where the tasks have no reference answers, or the evaluator needs more than an output.
    """
    answers = Counter(str(t.answer) for t in tasks if t.answer is not None)
    best: tuple[str, float] | None = None
    for answer, _ in answers.most_common(_TRIED):
        values: list[float] = []
        for task in tasks:
            try:
                reward = await grade(evaluator, task, Episode(task=task, output=answer), timeout_s=timeout_s)
            except EvaluatorError:
                return None
            values.append(0.0 if reward is None else reward.value)
        score = float(np.mean(values))
        if best is None or score > best[1]:
            best = (answer, score)
    return best
