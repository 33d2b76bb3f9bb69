"""The task ``gsm8k``: grade-school word problems (Cobbe et al. 2021, arXiv:2110.14168), graded by the number that
stands in the asked-for form.
"""

__all__ = ["Gsm8kSettings", "grade_marked_number", "gsm8k"]

import re
from fractions import Fraction

from pydantic import Field

from rllm.config import Settings
from rllm.errors import TaskError
from rllm.tasks.hub import DEFAULT_REVISION, HubRepo, Row
from rllm.tasks.source import ListedTasks
from rllm.tasks.split import HeldOut, draw_questions, without_questions
from rllm.tasks.text import as_text, last_number, parse_number, plain_number, without_thoughts
from rllm.types import Episode, Reward, Task

REPO, CONFIG, COLUMNS = "openai/gsm8k", "main", ("question", "answer")
INSTRUCTION = "\nThink step by step. End with a last line of the form #### N, where N is the answer as a plain number."

_MARKED = re.compile(r"(?<!#)####(?!#)([^\n]*)")
_DRESSING = "*_` \t"


class Gsm8kSettings(Settings):
    """Of the task ``gsm8k``."""

    size: int | None = Field(default=None, ge=1)
    """How many of the questions to train on; None for all 7,473."""
    held_out: HeldOut = 1.0
    """How many of the test split's 1,319: a share or a count."""
    data_seed: int = 0
    """Which questions are drawn, where not all are."""
    revision: str = DEFAULT_REVISION
    """A branch, tag or commit of the data set; a commit fixes it."""


def gsm8k(settings: Gsm8kSettings) -> ListedTasks:
    """Load both splits. Raises TaskError with what to do, see ``HubRepo``."""
    repo = HubRepo.find("gsm8k", REPO, settings.revision)
    held_out = [_task("test", k, row) for k, row in enumerate(repo.rows(CONFIG, "test", COLUMNS))]
    train = [_task("train", k, row) for k, row in enumerate(repo.rows(CONFIG, "train", COLUMNS))]
    train = without_questions(train, held_out)
    return ListedTasks(
        name="gsm8k",
        train_tasks=tuple(draw_questions(train, settings.size, seed=settings.data_seed, where="gsm8k.size")),
        held_out_tasks=tuple(
            draw_questions(held_out, settings.held_out, seed=settings.data_seed, where="gsm8k.held_out")
        ),
        evaluator=grade_marked_number,
        max_tokens=512,
    )


def _task(split: str, number: int, row: Row) -> Task:
    solution = as_text(row["answer"])
    answer = marked_number(solution)
    if answer is None:
        raise TaskError(f"gsm8k: row {number} of {split!r} has no line '#### N' in its answer: {solution[-80:]!r}")
    return Task(
        id=f"gsm8k-{split}-{number}",
        prompt=as_text(row["question"]).strip() + INSTRUCTION,
        answer=plain_number(answer),
        data={"solution": solution},
        source="gsm8k",
    )


def grade_marked_number(task: Task, episode: Episode) -> Reward:
    """1 where the last line ``#### N`` of the reply holds the answer, exactly, and nothing else.

    The last one counts, even where it holds no number: a list of guesses earns no more than its last entry. The signals
    are ``answered`` (there is such a line, with a number) and ``number``: the number the reply ends with is right,
    whatever its form.

    >>> task = Task(id="1", answer="70000")
    >>> [grade_marked_number(task, Episode(output=o)).value for o in ("#### $70,000.00", "70000", "#### 70000 or 7")]
    [1.0, 0.0, 0.0]
    """
    wanted = parse_number(as_text(task.answer))
    if wanted is None:
        raise ValueError(f"the task's answer is {task.answer!r:.80}, which is no number; use another grader")
    reply = without_thoughts(as_text(episode.output))
    found = marked_number(reply)
    is_correct = found == wanted
    signals = {"answered": float(found is not None), "number": float(is_correct or last_number(reply) == wanted)}
    return Reward(value=float(is_correct), is_correct=is_correct, signals=signals)


def marked_number(text: str) -> Fraction | None:
    """The number of the last line ``#### N``; None where there is none, or more than one number in it.

    Commas between thousands, a currency sign, a per cent sign, bold type and a full stop are taken off.

    >>> marked_number("#### 1\\n#### **1,250.50**."), marked_number("#### 12 or 13"), marked_number("It is 12")
    (Fraction(2501, 2), None, None)
    """
    marked = _MARKED.findall(text)
    if not marked:
        return None
    return parse_number(marked[-1].strip(_DRESSING).removesuffix(".").strip(_DRESSING).removesuffix("%"))
