"""The task ``math``: competition problems (Hendrycks et al. 2021, arXiv:2103.03874), held out MATH-500 (Lightman et al.
2023, arXiv:2305.20050), graded by what the last box of a reply holds.
"""

__all__ = ["MathSettings", "grade_boxed", "math_tasks"]

from typing import Literal

from pydantic import Field

from rllm.config import Settings
from rllm.errors import TaskError
from rllm.tasks.hub import DEFAULT_REVISION, HubRepo, Row
from rllm.tasks.math_answers import check_math_verify, last_boxed, same_answer
from rllm.tasks.source import ListedTasks
from rllm.tasks.split import HeldOut, draw_questions, without_questions
from rllm.tasks.text import as_text, without_thoughts
from rllm.types import Episode, Reward, Task

TRAIN_REPO, TRAIN_COLUMNS = "EleutherAI/hendrycks_math", ("problem", "level", "type", "solution")
HELD_OUT_REPO = "HuggingFaceH4/MATH-500"
HELD_OUT_COLUMNS = ("problem", "solution", "answer", "subject", "level", "unique_id")
INSTRUCTION = "\nThink step by step, and put your final answer within \\boxed{}."

Subject = Literal[
    "algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory", "prealgebra",
    "precalculus",
]  # fmt: skip


class MathSettings(Settings):
    """Of the task ``math``."""

    subjects: tuple[Subject, ...] = (
        "algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory", "prealgebra",
        "precalculus",
    )  # fmt: skip
    """The configurations of the data set that are trained on and validated on."""
    max_level: int = Field(default=5, ge=1, le=5)
    """Of the problems' levels, 1 (easiest) to 5."""
    size: int | None = Field(default=None, ge=1)
    """How many of these problems to train on; None for all, 7,500 where nothing is left out."""
    held_out: HeldOut = 1.0
    """How many of MATH-500: a share or a count."""
    data_seed: int = 0
    """Which problems are drawn, where not all are."""
    revision: str = DEFAULT_REVISION
    """A branch, tag or commit of EleutherAI/hendrycks_math; a commit fixes it."""
    held_out_revision: str = DEFAULT_REVISION
    """The same of HuggingFaceH4/MATH-500."""


def math_tasks(settings: MathSettings) -> ListedTasks:
    """Load the train split of each subject, and MATH-500. Raises TaskError with what to do, see ``HubRepo``."""
    check_math_verify("math")
    repo = HubRepo.find("math", TRAIN_REPO, settings.revision)
    held_out_repo = HubRepo.find("math", HELD_OUT_REPO, settings.held_out_revision)
    every_held_out = [_held_out(row) for row in held_out_repo.rows(None, "test", HELD_OUT_COLUMNS)]
    train = [
        _trained(subject, number, row)
        for subject in settings.subjects
        for number, row in enumerate(repo.rows(subject, "train", TRAIN_COLUMNS))
    ]
    # Also none of those that the settings leave out of the validation: another run may validate on them.
    train = without_questions(train, every_held_out)
    chosen = [[task for task in tasks if _is_asked_for(task, settings)] for tasks in (train, every_held_out)]
    if not chosen[0]:
        subjects = ", ".join(settings.subjects)
        raise TaskError(f"math: no problem of {subjects or 'no subject'} has a level up to {settings.max_level}")
    return ListedTasks(
        name="math",
        train_tasks=tuple(draw_questions(chosen[0], settings.size, seed=settings.data_seed, where="math.size")),
        held_out_tasks=tuple(
            draw_questions(chosen[1], settings.held_out, seed=settings.data_seed, where="math.held_out")
        ),
        evaluator=grade_boxed,
        max_tokens=1024,
    )


def _trained(subject: str, number: int, row: Row) -> Task:
    answer = last_boxed(as_text(row["solution"]))
    if answer is None:
        raise TaskError(f"math: row {number} of {subject!r} has no \\boxed answer: {row['solution'][-80:]!r}")
    return _task(f"math-{subject}-{number}", row, answer, subject)


def _held_out(row: Row) -> Task:
    subject = as_text(row["subject"]).casefold().replace("&", "and").replace(" ", "_")
    return _task(f"math-500-{row['unique_id']}", row, as_text(row["answer"]), subject)


def _task(task_id: str, row: Row, answer: str, subject: str) -> Task:
    return Task(
        id=task_id,
        prompt=as_text(row["problem"]).strip() + INSTRUCTION,
        answer=answer,
        data={"subject": subject, "level": _level(row["level"]), "solution": row["solution"]},
        source="math",
    )


def _level(given: str | int) -> int | None:
    """Of 3 or "Level 3"; a few have "Level ?"."""
    level = str(given).removeprefix("Level").strip()
    return int(level) if level.isdecimal() else None


def _is_asked_for(task: Task, settings: MathSettings) -> bool:
    """By subject and level; a problem whose level nobody knows counts as the hardest."""
    return task.data["subject"] in settings.subjects and (task.data["level"] or 5) <= settings.max_level


def grade_boxed(task: Task, episode: Episode) -> Reward:
    """1 where what stands in the reply's last ``\\boxed{}`` equals the answer; the signal ``answered``: it has one.

    An answer that can't be compared (see ``same_answer``) is wrong, with a comment and the signal ``uncompared``.
    """
    answer = last_boxed(without_thoughts(as_text(episode.output)))
    if not answer:
        return Reward(value=0.0, is_correct=False, signals={"answered": 0.0, "uncompared": 0.0})
    verdict = same_answer(as_text(task.answer), answer)
    return Reward(
        value=float(verdict.is_same),
        is_correct=verdict.is_same,
        signals={"answered": 1.0, "uncompared": float(bool(verdict.comment))},
        comment=verdict.comment,
    )
