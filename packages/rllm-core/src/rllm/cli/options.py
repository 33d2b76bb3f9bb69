"""Options and settings that several commands share."""

__all__ = ["as_options", "dry_run_option", "run_options", "settings_help"]

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def complete_tasks(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The registered tasks that begin so."""
    from rllm.plugins import get_plugins

    return [name for name in get_plugins().names("task") if name.startswith(incomplete)]


def complete_models(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The models that have a name and begin so."""
    from rllm.models import list_models

    return [source.name for source in list_models() if source.name.startswith(incomplete)]


def run_options(function: F) -> F:
    """TASKS, the settings, and the five options that everyone uses."""
    decorators = [
        click.argument("tasks", required=False, shell_complete=complete_tasks),
        click.argument("settings", nargs=-1, metavar="[KEY=VALUE]..."),
        click.option(
            "--model", help="A name of `rllm model list`, a folder, or a hub id.", shell_complete=complete_models
        ),
        click.option("--agent", help="path/to/file.py:function, module:function, or a registered agent."),
        click.option("--evaluator", help="Likewise; without it the tasks' own."),
        click.option("--backend", help="The training backend [default: tinker]."),
        click.option("--config", type=click.Path(dir_okay=False), help="A YAML file of settings."),
    ]
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


def dry_run_option(function: F) -> F:
    """The option ``--dry-run``, the argument ``is_dry``."""
    return click.option(
        "--dry-run", "is_dry", is_flag=True,
        help="Check everything, and say what the run would be and take: memory, time. Nothing is trained or written.",
    )(function)  # fmt: skip


def as_options(
    tasks: str | None, settings: tuple[str, ...], options: Mapping[str, str | None], *, named: str = "tasks"
) -> dict[str, Any]:
    """The command line's settings as one layer. TASKS may be left out where --config or tasks=… names them."""
    from rllm.configure import parse_assignments

    assignments = list(settings)
    if tasks is not None and "=" in tasks:
        assignments.insert(0, tasks)
        tasks = None
    layer = parse_assignments(assignments)
    layer |= {k: v for k, v in options.items() if v is not None}
    if tasks is not None:
        layer[named] = tasks
    return layer


def settings_help(kind: type[Any], context: click.Context, value: bool) -> None:
    """Print every setting with its default, one a line, and end."""
    if not value:
        return
    from pydantic import BaseModel

    from rllm.plugins import get_plugins

    def write(model: type[BaseModel], prefix: str) -> None:
        for name, field in model.model_fields.items():
            annotation = field.annotation
            if field.exclude:
                continue
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                write(annotation, f"{prefix}{name}.")
            else:
                default = (
                    "null"
                    if field.get_default(call_default_factory=True) is None
                    else field.get_default(call_default_factory=True)
                )
                click.echo(f"  {prefix}{name}={default}")

    click.echo("Settings, with their defaults (KEY=VALUE on the command line, or in the YAML file):")
    write(kind, "")
    for section in ("backend", "task", "estimator", "loss", "logger"):
        for item in get_plugins().all(section):
            if isinstance(item.settings_source, type):
                click.echo(f"\nOf the {section} {item.name!r}:")
                write(item.settings_source, f"{item.name}.")
    click.echo("\nOf the other tasks: rllm task show NAME")
    context.exit()
