"""Registers the built-in tasks; cheap to import, for reasoning-gym comes in only when its tasks are made."""

from __future__ import annotations

__all__: list[str] = []

from collections.abc import Callable
from typing import TYPE_CHECKING

from pydantic import BaseModel

from rllm.hookspecs import hookimpl
from rllm.tasks.collected import PythonSettings, python_tasks
from rllm.tasks.files import FileSettings, file_tasks
from rllm.tasks.gsm8k import Gsm8kSettings, gsm8k
from rllm.tasks.gym import GymTask
from rllm.tasks.gym_names import GYM_TASKS
from rllm.tasks.json_fields import JsonFieldsSettings, json_fields
from rllm.tasks.letters import LettersSettings, letters_tasks
from rllm.tasks.math_task import MathSettings, math_tasks
from rllm.tasks.number_tasks import NUMBER_TASKS

if TYPE_CHECKING:
    from rllm.plugins import Register


@hookimpl
def rllm_register_tasks(register: Register) -> None:
    for task in NUMBER_TASKS:
        register(task.name, task.source, summary=task.summary, settings=task.settings)
    for gym_task in GYM_TASKS:
        register(gym_task.name, gym_task.source, summary=gym_task.summary, settings=_later(gym_task))
    register(
        "json_fields",
        json_fields,
        summary="two facts as a JSON object and nothing else; partial rewards, no end of questions",
        settings=JsonFieldsSettings,
    )
    register(
        "letters",
        letters_tasks,
        summary="say letters again by a rule; partial rewards, for rllm-tiny",
        settings=LettersSettings,
    )
    register(
        "gsm8k", gsm8k, summary="grade-school word problems; loaded from the Hugging Face hub", settings=Gsm8kSettings
    )
    register(
        "math",
        math_tasks,
        summary="competition problems, MATH-500 held out; loaded from the Hugging Face hub",
        settings=MathSettings,
    )
    register("file", file_tasks, summary="your own file: my_tasks.jsonl, .csv or .parquet", settings=FileSettings)
    register("python", python_tasks, summary="your own function, named as file.py:function", settings=PythonSettings)


def _later(task: GymTask) -> Callable[[], type[BaseModel]]:
    """Its settings when they are asked for: until then reasoning-gym is not imported."""
    return lambda: task.settings
