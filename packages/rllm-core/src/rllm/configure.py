"""From defaults, a YAML file and ``key=value`` arguments to one checked configuration.

The settings of the chosen plugin items (task, estimator, loss, backend) stand beside the core's, each under its
item's name. A key that nobody reads is an error: it names the nearest one, or the choice that would make it count.
"""

__all__ = [
    "GIVEN",
    "describe_settings",
    "parse_assignments",
    "read_config_file",
    "resolve_config",
    "resolve_layers",
    "section_name",
    "settings_of",
    "write_value",
]

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from rllm.config import EvalConfig, SftConfig, TrainConfig
from rllm.errors import ConfigError, UnknownNameError
from rllm.loading import looked_for
from rllm.plugins import PluginManager
from rllm.protocols import Registered

AnyConfig = TrainConfig | EvalConfig | SftConfig
C = TypeVar("C", TrainConfig, EvalConfig, SftConfig)


def read_config_file(path: str) -> dict[str, Any]:
    """The settings of a YAML file. Raises ConfigError that names the file, and the line where YAML knows it."""
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"the configuration file {path!r} can't be read: {error.strerror} {looked_for(path)}"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the configuration file {path!r} is no YAML: {_yaml_problem(error)}. Mend that line"
        ) from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"the configuration file {path!r} holds a {type(data).__name__}; it must hold `key: value`")
    return data


def parse_assignments(arguments: Iterable[str]) -> dict[str, Any]:
    """``["optimizer.lr=1e-5", "steps=40"]`` as nested settings; values are read as YAML.

    >>> parse_assignments(["optimizer.lr=0.5", "steps=40"])
    {'optimizer': {'lr': 0.5}, 'steps': 40}
    """
    settings: dict[str, Any] = {}
    for argument in arguments:
        key, sign, text = argument.partition("=")
        if not sign or not key:
            raise ConfigError(f"{argument!r} is no setting; write key=value, as in optimizer.lr=1e-5")
        try:
            value = yaml.safe_load(text) if text else None
        except yaml.YAMLError as error:
            raise ConfigError(
                f"the value of {argument!r} can't be read: {_yaml_problem(error)}. Values are YAML; quote the argument "
                "where it holds spaces or brackets, as in 'train_roles=[main, checker]'"
            ) from error
        nest(settings, key, value)
    return settings


def _yaml_problem(error: Exception) -> str:
    """What YAML says, in one line."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    mark = error.problem_mark
    return f"{error.problem} (line {mark.line + 1}, column {mark.column + 1})"


def nest(settings: dict[str, Any], dotted: str, value: Any) -> None:
    """Set ``settings["a"]["b"]`` for ``a.b``."""
    *parents, last = dotted.split(".")
    for parent in parents:
        inner = settings.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{dotted!r} is set, but {parent!r} already has the value {inner!r}")
        settings = inner
    settings[last] = value


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both, nested; ``above`` wins."""
    merged = dict(below)
    for key, value in above.items():
        held = merged.get(key)
        merged[key] = merge(held, value) if isinstance(held, Mapping) and isinstance(value, Mapping) else value
    return merged


def resolve_config(kind: type[C], layers: Iterable[Mapping[str, Any]], plugins: PluginManager) -> C:
    """The configuration from layers of settings, later ones first in rank, with the chosen plugins' sections.

    Keys may be nested or dotted. Raises UnknownNameError and ConfigError, each naming the setting.
    """
    data: dict[str, Any] = {}
    for layer in layers:
        nested: dict[str, Any] = {}
        for key, value in layer.items():
            nest(nested, key, value)
        data = merge(data, nested)
    core = {k: v for k, v in data.items() if k in kind.model_fields and k != "plugins"}
    rest = {k: v for k, v in data.items() if k not in core}
    config = _validate(kind, core, prefix="")
    chosen = _chosen(config, plugins)
    sections: dict[str, Any] = {}
    for name, item in chosen.items():
        if item.settings is not None:
            sections[name] = _validate(item.settings, rest.pop(name, {}), prefix=f"{name}.")
    for key, value in rest.items():
        _refuse(key, value, config, plugins, chosen)
    return config.model_copy(update={"plugins": sections})


def resolve_layers(kind: type[C], layers: Sequence[tuple[str, Mapping[str, Any]]], plugins: PluginManager) -> C:
    """``resolve_config`` of layers with names; a mistake that stands in a file is said with the file's name."""
    try:
        return resolve_config(kind, [layer for _, layer in layers], plugins)
    except ConfigError as error:
        for source, layer in layers:
            if source != GIVEN and _fails_alike(kind, layer, plugins, error):
                error.args = (f"{source}: {error}",)
        raise


def _fails_alike(kind: type[C], layer: Mapping[str, Any], plugins: PluginManager, error: ConfigError) -> bool:
    try:
        resolve_config(kind, [layer], plugins)
    except ConfigError as alone:
        return str(alone) == str(error)
    return False


GIVEN = "given"
"""How layers are called that are no file: the command line's, or a Python caller's."""


def settings_of(config: AnyConfig, name: str) -> BaseModel | None:
    """The section of a chosen plugin item; None where it has no settings."""
    return config.plugins.get(section_name(name))


TASK_FILES = (".jsonl", ".csv", ".parquet")
"""How the name of a file of tasks ends."""


def section_name(tasks: str) -> str:
    """The section that holds the settings of ``tasks``: its own name, ``file`` for a file, ``python`` for a function.

    >>> section_name("chain_sum"), section_name("my_tasks.jsonl"), section_name("my_tasks.py:make")
    ('chain_sum', 'file', 'python')
    """
    if tasks.endswith(TASK_FILES):
        return "file"
    return "python" if ":" in tasks else tasks


def describe_settings(config: AnyConfig) -> dict[str, Any]:
    """The whole configuration as plain data, the plugins' sections included: what a run writes to its folder."""
    data = config.model_dump(mode="json")
    return data | {name: section.model_dump(mode="json") for name, section in config.plugins.items()}


def _chosen(config: AnyConfig, plugins: PluginManager) -> dict[str, Registered]:
    items = [plugins.get("backend", config.backend)]
    section = "" if isinstance(config, SftConfig) else section_name(config.tasks)
    if section in plugins.names("task"):
        items.append(plugins.get("task", section))
    if isinstance(config, TrainConfig):
        items.append(plugins.get("loss", config.loss))
        items += [plugins.get("estimator", n) for n in {config.estimator, *config.estimator_by_role.values()}]
        items += [plugins.get("logger", n) for n in config.loggers]
    return {item.name: item for item in items}


def _section_names(plugins: PluginManager) -> list[str]:
    kinds = ("task", "estimator", "loss", "backend", "logger")
    return [item.name for kind in kinds for item in plugins.all(kind) if item.settings_source is not None]


def _refuse(key: str, value: Any, config: BaseModel, plugins: PluginManager, chosen: Mapping[str, Registered]) -> None:
    kinds = {"task": "tasks", "estimator": "estimator", "loss": "loss", "backend": "backend", "logger": "loggers"}
    for kind, setting in kinds.items():
        if key in plugins.names(kind):
            inner = f"{key}.{next(iter(value))}" if isinstance(value, Mapping) and value else key
            if key in chosen or plugins.get(kind, key).settings_source is None:
                raise ConfigError(f"{inner!r} is set, but the {kind} {key!r} has no settings; leave it out")
            raise ConfigError(
                f"{inner!r} is set, but {setting} is {getattr(config, setting, None)!r} and nothing would read it: "
                f"set {setting}={key}, or leave {inner!r} out"
            )
    name = _first_leaf(key, value)
    command = COMMANDS[type(config)]
    for other, its in COMMANDS.items():
        if other is not type(config) and key in other.model_fields:
            raise ConfigError(f"{name!r} is a setting of `{its}`, and `{command}` has no such; leave it out")
    known = _dotted(type(config))
    for item in chosen.values():
        if item.settings is not None:
            known += _dotted(item.settings, f"{item.name}.")
    # A section that was misspelt, of something that is not chosen.
    known += [near for near in _section_names(plugins) if difflib.SequenceMatcher(None, near, key).ratio() > 0.8]
    raise UnknownNameError("setting", name, known, hint=f"`{command} --settings` lists all.")


COMMANDS: dict[type[BaseModel], str] = {TrainConfig: "rllm train", EvalConfig: "rllm eval", SftConfig: "rllm sft"}
"""Whose settings these are."""


def _first_leaf(key: str, value: Any) -> str:
    while isinstance(value, Mapping) and value:
        inner, value = next(iter(value.items()))
        key = f"{key}.{inner}"
    return key


def _dotted(model: type[BaseModel], prefix: str = "") -> list[str]:
    names: list[str] = []
    for name, field in model.model_fields.items():
        if field.exclude:
            continue
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names += _dotted(kind, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names


M = TypeVar("M", bound=BaseModel)


def _validate(model: type[M], data: Any, prefix: str) -> M:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{prefix.rstrip('.')!r} is {data!r}; it has settings of its own, as {prefix}NAME=VALUE")
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        first = error.errors()[0]
        name = prefix + ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise UnknownNameError("setting", name, _dotted(model, prefix)) from None
        got = first.get("input")
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "model_type":
            raise ConfigError(f"{name}={got!r} won't do: it has settings of its own, as {name}.NAME=VALUE") from None
        default = _default_of(model, first["loc"])
        advice = f" (default: {default})" if default is not None else ""
        raise ConfigError(f"{name or prefix}={got!r} won't do: {message[:1].lower()}{message[1:]}{advice}") from None


def _default_of(model: type[BaseModel], place: Sequence[int | str]) -> str | None:
    """A setting's default as the command line has it; None where there is none to be named."""
    value: Any = model
    for part in place:
        field = value.model_fields.get(str(part)) if isinstance(value, type) and issubclass(value, BaseModel) else None
        if field is None:
            return None
        kind = field.annotation
        value = (
            kind
            if isinstance(kind, type) and issubclass(kind, BaseModel)
            else field.get_default(call_default_factory=True)
        )
    return None if isinstance(value, type) else write_value(value)


def write_value(value: Any) -> str:
    """A setting's value in one line of YAML, as ``key=value`` and a file take it.

    >>> write_value(None), write_value(["main", "checker"]), write_value(7e-6)
    ('null', '[main, checker]', '7.0e-06')
    """
    written = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return written.removesuffix("...\n").rstrip()
