"""``rllm task``: which tasks there are, and what one looks like."""

__all__ = ["command"]

import json

import click


@click.group()
def command() -> None:
    """List and show tasks."""


@command.command("list")
def list_tasks() -> None:
    """The registered task sources, a line each."""
    from rllm.plugins import get_plugins

    items = get_plugins().all("task")
    width = max(len(item.name) for item in items)
    for item in items:
        click.echo(f"{item.name:<{width}}  {item.summary}")


@command.command("show")
@click.argument("name")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def show(name: str, settings: tuple[str, ...]) -> None:
    """The settings of the task source NAME, how many tasks it has, and one of them."""
    from rllm.config import EvalConfig
    from rllm.configure import parse_assignments, resolve_config, settings_of
    from rllm.plugins import get_plugins
    from rllm.tasks import as_task_source

    plugins = get_plugins()
    layer = parse_assignments(settings) | {"tasks": name}
    config = resolve_config(EvalConfig, [layer], plugins)
    section = settings_of(config, name)
    source = as_task_source(name, section, plugins)
    train, held_out = source.train(), source.held_out()
    click.echo(f"{source.name}: {len(train)} tasks to train on, {len(held_out)} held out; agent {source.agent!r}")
    if section is not None:
        for key, value in section.model_dump().items():
            click.echo(f"  {name}.{key}={value}")
    click.echo(json.dumps(train[0].model_dump(mode="json"), indent=2, ensure_ascii=False))
