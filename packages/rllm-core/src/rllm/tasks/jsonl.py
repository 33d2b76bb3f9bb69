"""The user's JSONL: one task a line, ``{"prompt": …, "answer": …}``, with the place named in every complaint."""

__all__ = ["JsonlSettings", "jsonl_tasks", "read_jsonl"]

import json
from pathlib import Path
from typing import Any, Literal, NoReturn

from rllm.config import Settings
from rllm.errors import ConfigError, TaskError
from rllm.plugins import get_plugins
from rllm.protocols import Evaluator
from rllm.tasks.records import NEEDS, as_task, check_answers, check_ids
from rllm.tasks.source import ListedTasks
from rllm.tasks.split import HeldOut, question_key, split_by_question
from rllm.tasks.text import as_text, is_number
from rllm.types import Task

Placed = tuple[str, Task]
"""A task, and the file and line it stands on."""


class JsonlSettings(Settings):
    """Of a JSONL task file: ``rllm train my_tasks.jsonl jsonl.held_out=50``."""

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


def jsonl_tasks(settings: JsonlSettings) -> ListedTasks:
    """The tasks of a JSONL file. Raises TaskError that names the file and line."""
    if not settings.path:
        raise ConfigError("jsonl.path is not set: name the file, as in jsonl.path=my_tasks.jsonl")
    placed = read_jsonl(settings.path)
    if isinstance(settings.held_out, str):
        extra = read_jsonl(settings.held_out)
        _refuse_shared(placed, extra)
        train, held_out = [task for _, task in placed], [task for _, task in extra]
        placed = placed + extra
    else:
        tasks = [task for _, task in placed]
        train, held_out = split_by_question(tasks, settings.held_out, seed=settings.data_seed, where=settings.path)
    check_ids(placed)
    has_answers = check_answers(placed, unit="line")
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


def read_jsonl(path: str) -> list[Placed]:
    """The tasks of one file in its order, each with its place; empty lines are passed over."""
    try:
        raw = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise TaskError(f"the task file {path!r} can't be read: {error.strerror} (looked from {Path.cwd()})") from error
    placed: list[Placed] = []
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            where = f"{path} line {number}"
            record = _parse_line(line, where)
            task = as_task(record, where, unit="line", default_id=f"{Path(path).stem}:{number}", source=Path(path).stem)
            placed.append((where, task))
    if not placed:
        raise TaskError(f"{path} holds no tasks. {NEEDS.format(unit='line')}")
    return placed


def _parse_line(line: bytes, where: str) -> dict[str, Any]:
    needs = NEEDS.format(unit="line")
    try:
        record = json.loads(line.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_twin_keys)
    except UnicodeDecodeError as error:
        raise TaskError(f"{where}: it is not UTF-8 (byte {error.start + 1}). Save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        raise TaskError(f"{where}: it is no JSON: {error.msg} at column {error.colno}. {needs}") from error
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where}: {error}. {needs}") from error
    if not isinstance(record, dict):
        raise TaskError(f'{where}: it holds a {type(record).__name__}, not an object {{"prompt": …}}. {needs}')
    return record


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _no_twin_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        twin = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise ValueError(f'"{twin}" stands twice in one object')
    return record


def _refuse_shared(train: list[Placed], held_out: list[Placed]) -> None:
    places = {question_key(task): where for where, task in train}
    for where, task in held_out:
        if question_key(task) in places:
            raise TaskError(
                f"{where}: this question is also trained on, see {places[question_key(task)]} "
                f"({task.prompt[:80]!r}). A validation on it would measure memory: take it out of one file"
            )
