"""From the records of a user's file or function (``{"prompt": …, "answer": …}``) to checked tasks."""

__all__ = ["as_task", "check_answers", "check_ids"]

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rllm.errors import TaskError
from rllm.types import Task

NEEDS = 'Each {unit} needs "prompt" and "answer"; see docs/tasks.md'
"""How a complaint about a record ends; ``unit`` is what holds one: a line, an item."""


def as_task(record: Mapping[str, Any], where: str, *, unit: str, default_id: str, source: str) -> Task:
    """The task of one record: "prompt" (text), "answer" and "id" (optional), and anything else as its data.

    Raises TaskError that begins with ``where`` (a file and line).
    """
    needs = NEEDS.format(unit=unit)
    data = dict(record)
    prompt, answer, given_id = data.pop("prompt", None), data.pop("answer", None), data.pop("id", None)
    if prompt is None:
        raise TaskError(f'{where}: "prompt" is missing. {needs}')
    if not isinstance(prompt, str):
        raise TaskError(f'{where}: "prompt" is {prompt!r:.80}; it must be text. {needs}')
    if not prompt.strip():
        raise TaskError(f'{where}: "prompt" is empty. {needs}')
    if given_id is not None and (isinstance(given_id, bool) or not isinstance(given_id, str | int)):
        raise TaskError(f'{where}: "id" is {given_id!r:.80}; it must be text or a whole number, or left out')
    keys: list[Any] = list(data)
    if any(not isinstance(key, str) for key in keys):
        raise TaskError(f"{where}: the names of the fields must be text, got {sorted(map(repr, data))}. {needs}")
    _check_unicode([prompt, answer, given_id, data], where)
    return Task(
        id=default_id if given_id is None else str(given_id), prompt=prompt, answer=answer, data=data, source=source
    )


def _check_unicode(values: Sequence[Any], where: str) -> None:
    """Half a surrogate pair is no text: it would fail only later, when the prompt is sent."""
    try:
        json.dumps(values, ensure_ascii=False, default=str).encode("utf-8")
    except UnicodeEncodeError as error:
        raise TaskError(f"{where}: it holds half of a surrogate pair ({error.object[error.start]!r})") from error


def check_answers(tasks: Sequence[tuple[str, Task]], *, unit: str) -> bool:
    """Whether the tasks have answers: all of them or none. Raises TaskError at the first that lacks one of many."""
    has_some = any(task.answer is not None for _, task in tasks)
    for where, task in tasks:
        if has_some and task.answer is None:
            raise TaskError(f'{where}: "answer" is missing. {NEEDS.format(unit=unit)}')
    return has_some


def check_ids(tasks: Sequence[tuple[str, Task]]) -> None:
    """Raise TaskError, naming both places, where two tasks have one id."""
    first: dict[str, str] = {}
    for where, task in tasks:
        if task.id in first:
            raise TaskError(
                f'{where}: the "id" {task.id!r} stands already in {first[task.id]}. Give each its own, or leave it out'
            )
        first[task.id] = where
