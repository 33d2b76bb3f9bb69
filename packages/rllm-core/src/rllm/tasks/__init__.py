"""Where tasks come from: the built-in ones, the user's files, functions and lists."""

__all__ = [
    "HeldOut",
    "ListedTasks",
    "PythonSettings",
    "as_task_source",
    "load_task_source",
    "question_key",
    "split_by_question",
    "tasks_from",
]

from rllm.tasks.collected import PythonSettings, tasks_from
from rllm.tasks.resolve import as_task_source, load_task_source
from rllm.tasks.source import ListedTasks
from rllm.tasks.split import HeldOut, question_key, split_by_question
