"""``rllm task``: which tasks there are, and what one looks like."""

__all__ = ["command"]

import json

import click

from rllm.cli.following import command_on
from rllm.cli.output import json_option, only_json, print_json


@click.group()
def command() -> None:
    """List and show tasks."""


@command.command("list")
@json_option
def list_tasks(as_json: bool) -> None:
    """The registered task sources, a line each."""
    from rllm.plugins import get_plugins

    items = get_plugins().all("task")
    if as_json:
        print_json([{"name": item.name, "summary": item.summary, "plugin": item.plugin} for item in items])
        return
    width = max(len(item.name) for item in items)
    for item in items:
        click.echo(f"{item.name:<{width}}  {item.summary}")


@command.command("show")
@click.argument("name")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@json_option
def show(name: str, settings: tuple[str, ...], as_json: bool) -> None:
    """The settings of the task source NAME, how many tasks it has, and one of them."""
    from rllm.config import EvalConfig
    from rllm.configure import parse_assignments, resolve_config, section_name, settings_of
    from rllm.plugins import get_plugins
    from rllm.tasks import as_task_source

    plugins = get_plugins()
    layer = parse_assignments(settings) | {"tasks": name}
    config = resolve_config(EvalConfig, [layer], plugins)
    section = settings_of(config, name)
    with only_json(as_json):
        source = as_task_source(name, section, plugins)
        train, held_out = source.train(), source.held_out()
    if as_json:
        print_json(
            {
                "name": source.name,
                "train": len(train),
                "held_out": len(held_out),
                "agent": source.agent,
                "max_tokens": source.max_tokens,
                "settings": {} if section is None else section,
                "example": train[0] if train else None,
            }
        )
        return
    click.echo(f"{source.name}: {len(train)} tasks to train on, {len(held_out)} held out; agent {source.agent!r}")
    if section is not None:
        for key, value in section.model_dump().items():
            click.echo(f"  {section_name(name)}.{key}={value}")
    if train:
        click.echo(json.dumps(train[0].model_dump(mode="json"), indent=2, ensure_ascii=False))
    click.echo(f"try it: {command_on('eval', config, model=config.model)}")
