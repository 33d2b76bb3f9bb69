"""Tasks that come from Python: a list, or a function that returns or yields them."""

__all__ = ["PythonSettings", "python_tasks", "tasks_from"]

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import Field

from rllm.config import Settings
from rllm.errors import ConfigError, TaskError
from rllm.loading import load_object
from rllm.protocols import TaskSource
from rllm.tasks.files import choose_grader
from rllm.tasks.records import as_task, check_answers, check_ids
from rllm.tasks.source import ListedTasks
from rllm.tasks.split import HeldOut, split_by_question
from rllm.types import Task


class PythonSettings(Settings):
    """Of tasks that a Python function gives: ``rllm train my_tasks.py:make python.held_out=50``."""

    function: str = ""
    """``file.py:name`` or ``module:name``; left out where the function itself is named as the tasks."""
    held_out: HeldOut = 0.1
    """A share of the questions (0.1) or a count (50)."""
    data_seed: int = 0
    """Which questions are held out."""
    limit: int = Field(default=100_000, ge=1)
    """A function that yields more tasks than this is stopped with an error; it may never end."""
    max_tokens: int | None = None
    """What a completion needs at most; None leaves the general default."""


def python_tasks(settings: PythonSettings) -> TaskSource:
    """The tasks of the function that the settings name. Raises ConfigError or TaskError with what to do."""
    if not settings.function:
        raise ConfigError("python.function is not set: name it, as in python.function=my_tasks.py:make")
    found = load_object(settings.function, "task function")
    if isinstance(found, TaskSource):
        return found
    return tasks_from(found, name=settings.function.rpartition(":")[2], settings=settings)


def tasks_from(
    tasks: Iterable[Any] | Callable[[], Any], *, name: str = "tasks", settings: PythonSettings | None = None
) -> TaskSource:
    """A task source of dicts (``{"prompt": …, "answer": …}``) and ``Task`` objects, or of a function that gives them.

    A function may also return a whole ``TaskSource``, which is taken as it is. Raises TaskError that names the item.
    """
    settings = settings or PythonSettings()
    if callable(tasks):
        tasks = _call(tasks, name)
        if isinstance(tasks, TaskSource):
            return tasks
    if isinstance(tasks, str | bytes | Mapping) or not isinstance(tasks, Iterable):
        raise TaskError(f"{name}: expected tasks (dicts or rllm.Task objects), got a {type(tasks).__name__}")
    placed = [_place(item, name, number) for number, item in enumerate(_bounded(tasks, name, settings.limit), start=1)]
    if not placed:
        raise TaskError(f'{name} gives no tasks. It must give one at least: a dict with "prompt" and "answer"')
    check_ids(placed)
    has_answers = check_answers(placed, unit="item")
    every = [task for _, task in placed]
    train, held_out = split_by_question(every, settings.held_out, seed=settings.data_seed, where=name)
    return ListedTasks(
        name=name,
        train_tasks=tuple(train),
        held_out_tasks=tuple(held_out),
        evaluator=choose_grader("auto", every) if has_answers else None,
        max_tokens=settings.max_tokens,
    )


def _call(function: Callable[[], Any], name: str) -> Any:
    try:
        return function()
    except Exception as error:
        raise TaskError(f"the task function {name!r} raised {type(error).__name__}: {error}") from error


def _bounded(tasks: Iterable[Any], name: str, limit: int) -> list[Any]:
    try:
        items = list(itertools.islice(tasks, limit + 1))
    except Exception as error:
        raise TaskError(f"the task function {name!r} raised {type(error).__name__}: {error}") from error
    if len(items) > limit:
        raise TaskError(f"{name} gives more than {limit} tasks. Let it end, or raise python.limit")
    return items


def _place(item: Any, name: str, number: int) -> tuple[str, Task]:
    where = f"{name} item {number}"
    if isinstance(item, Task):
        return where, item
    if isinstance(item, Mapping):
        return where, as_task(item, where, unit="item", default_id=f"{name}:{number}", source=name)
    raise TaskError(f"{where}: it is a {type(item).__name__}; each item must be a dict or an rllm.Task")
