"""The user's file of tasks: ``{"prompt": …, "answer": …}`` a line or row, with the place named in every complaint."""

__all__ = ["FileSettings", "choose_grader", "file_tasks"]

from pathlib import Path
from typing import Literal

from rllm.config import Settings
from rllm.errors import ConfigError, TaskError
from rllm.plugins import get_plugins
from rllm.protocols import Evaluator
from rllm.tasks.formats import NEEDS_OF, read_records
from rllm.tasks.records import NEEDS, as_task, check_answers, check_ids
from rllm.tasks.source import ListedTasks
from rllm.tasks.split import HeldOut, question_key, split_by_question
from rllm.tasks.text import as_text, is_number
from rllm.types import Task

Placed = tuple[str, Task]
"""A task, and the file and line it stands on."""


class FileSettings(Settings):
    """Of a task file: ``rllm train my_tasks.jsonl file.held_out=50``."""

    path: str = ""
    """The file; left out where the file itself is named as the tasks."""
    held_out: HeldOut | str = 0.1
    """A share of the questions (0.1), a count (50), or a second file that holds them."""
    data_seed: int = 0
    """Which questions are held out."""
    grader: Literal["auto", "exact", "number", "contains"] = "auto"
    """Used where the run names no evaluator; ``auto``: number where every answer is one, else exact."""
    max_tokens: int | None = None
    """What a completion needs at most; None leaves the general default."""


def file_tasks(settings: FileSettings) -> ListedTasks:
    """The tasks of a JSONL, CSV or Parquet file. Raises TaskError that names the file and line."""
    if not settings.path:
        raise ConfigError("file.path is not set: name the file, as in file.path=my_tasks.jsonl")
    placed = read_tasks(settings.path)
    if isinstance(settings.held_out, str):
        extra = read_tasks(settings.held_out)
        _refuse_shared(placed, extra)
        train, held_out = [task for _, task in placed], [task for _, task in extra]
        placed = placed + extra
    else:
        tasks = [task for _, task in placed]
        train, held_out = split_by_question(tasks, settings.held_out, seed=settings.data_seed, where=settings.path)
    check_ids(placed)
    has_answers = check_answers(placed, unit=NEEDS_OF[Path(settings.path).suffix])
    return ListedTasks(
        name=Path(settings.path).stem,
        train_tasks=tuple(train),
        held_out_tasks=tuple(held_out),
        evaluator=choose_grader(settings.grader, [*train, *held_out]) if has_answers else None,
        max_tokens=settings.max_tokens,
    )


def choose_grader(name: str, tasks: list[Task]) -> Evaluator:
    """The built-in grader of that name; for ``auto``, number where every answer is one, else exact."""
    if name == "auto":
        name = "number" if all(is_number(as_text(task.answer)) for task in tasks) else "exact"
    return get_plugins().get("evaluator", name).value


def read_tasks(path: str) -> list[Placed]:
    """The tasks of one file in its order, each with its place; empty lines are passed over."""
    stem, unit = Path(path).stem, NEEDS_OF.get(Path(path).suffix, "line")
    placed = [
        (where, as_task(record, where, unit=unit, default_id=f"{stem}:{where.rpartition(' ')[2]}", source=stem))
        for where, record in read_records(path)
    ]
    if not placed:
        raise TaskError(f"{path} holds no tasks. {NEEDS.format(unit=unit)}")
    return placed


def _refuse_shared(train: list[Placed], held_out: list[Placed]) -> None:
    places = {question_key(task): where for where, task in train}
    for where, task in held_out:
        if question_key(task) in places:
            raise TaskError(
                f"{where}: this question is also trained on, see {places[question_key(task)]} "
                f"({task.prompt[:80]!r}). A validation on it would measure memory: take it out of one file"
            )
