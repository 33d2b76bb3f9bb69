"""What a user names as tasks, as a task source: a registered name, a file, a function, a list, or a source itself."""

__all__ = ["as_task_source", "load_task_source"]

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from rllm.config import EvalConfig
from rllm.configure import TASK_FILES, resolve_config, section_name, settings_of
from rllm.errors import ConfigError, PluginError, TaskError, UnknownNameError
from rllm.plugins import PluginManager, get_plugins
from rllm.protocols import Registered, TaskSource
from rllm.tasks.collected import PythonSettings, python_tasks, tasks_from
from rllm.tasks.files import FileSettings, file_tasks


def as_task_source(tasks: Any, settings: BaseModel | None, plugins: PluginManager) -> TaskSource:
    """The task source that ``tasks`` means, built with the section of the configuration that belongs to it.

    Takes a registered name, ``file.jsonl`` (or .csv, .parquet), ``file.py:function`` or ``module:function``, a
    function, a list of dicts or ``Task`` objects, or a ``TaskSource``. Raises TaskError, ConfigError or
    UnknownNameError with what to do.
    """
    if isinstance(tasks, str):
        return _named(tasks, settings, plugins)
    if isinstance(tasks, TaskSource):
        return tasks
    if callable(tasks) or isinstance(tasks, Iterable):
        name = getattr(tasks, "__name__", "tasks")
        return tasks_from(tasks, name=name, settings=_section(settings, PythonSettings))
    raise TaskError(
        f"tasks is a {type(tasks).__name__}; give a name of `rllm task list`, a file, a function, or a list of "
        "dicts or rllm.Task objects"
    )


def load_task_source(
    name: str, settings: Mapping[str, Any] | None = None, plugins: PluginManager | None = None
) -> TaskSource:
    """The same by name or path, with the source's own settings as plain values.

    >>> load_task_source("products", {"size": 50, "held_out": 10}).name
    'products'
    """
    plugins = plugins or get_plugins()
    layer = {"tasks": name, **{f"{section_name(name)}.{key}": value for key, value in (settings or {}).items()}}
    config = resolve_config(EvalConfig, [layer], plugins)
    return as_task_source(name, settings_of(config, name), plugins)


def _named(name: str, settings: BaseModel | None, plugins: PluginManager) -> TaskSource:
    if name.endswith(TASK_FILES):
        return file_tasks(_with(_section(settings, FileSettings), "file", "path", name))
    if ":" in name:
        return python_tasks(_with(_section(settings, PythonSettings), "python", "function", name))
    item = _registered(name, plugins)
    chosen = settings if settings is not None or item.settings is None else item.settings()
    source = item.value() if chosen is None else item.value(chosen)
    if not isinstance(source, TaskSource):
        raise PluginError(
            f"plugin {item.plugin!r}: task {name!r} gave a {type(source).__name__}; it must return a TaskSource"
        )
    return source


def _registered(name: str, plugins: PluginManager) -> Registered:
    try:
        return plugins.get("task", name)
    except UnknownNameError as error:
        hint = ""
        if name.endswith(".py"):
            hint = f"Tasks of a Python file are named by their function: {name}:make_tasks."
        elif "." in name or "/" in name:
            hint = f"The name of a file of tasks ends in {', '.join(TASK_FILES)}."
        raise UnknownNameError("task", name, error.known, hint) from None


S = TypeVar("S", bound=BaseModel)


def _section(settings: BaseModel | None, kind: type[S]) -> S:
    return settings if isinstance(settings, kind) else kind()


def _with(section: S, prefix: str, field: str, name: str) -> S:
    """The section with what was named as the tasks; it must not name another one itself."""
    given = section.model_dump()[field]
    if given not in ("", name):
        raise ConfigError(f"tasks is {name!r}, but {prefix}.{field} is {given!r}. Leave {prefix}.{field} out")
    return section.model_copy(update={field: name})
