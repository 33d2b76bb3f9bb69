"""``rllm plugin``: which plugins there are, and what each has registered."""

__all__ = ["command"]

from typing import TYPE_CHECKING, Any

import click

from rllm.cli.output import json_option, print_json

if TYPE_CHECKING:
    from rllm.plugins import LoadedPlugin


@click.group()
def command() -> None:
    """List and show plugins: who registered what."""


@command.command("list")
@json_option
def list_plugins(as_json: bool) -> None:
    """Every plugin that is loaded, with the hooks it implements, and those that could not be loaded."""
    from rllm.plugins import get_plugins

    manager = get_plugins()
    found = manager.loaded()
    if as_json:
        plugins = [_as_dict(plugin) for plugin in found]
        print_json({"plugins": plugins, "failed": manager.failed})
        return
    width = max(len(plugin.name) for plugin in found)
    for plugin in found:
        kind = "built in " if plugin.is_builtin else "installed"
        click.echo(f"{plugin.name:<{width}}  {kind}  {', '.join(plugin.hooks)}")
    for name, reason in manager.failed.items():
        click.echo(f"{name:<{width}}  left out   {reason}")


@command.command("show")
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """What the plugin NAME has registered, or which plugin has registered NAME."""
    from rllm.errors import UnknownNameError
    from rllm.plugins import get_plugins

    found = get_plugins().loaded()
    everything = [(plugin, kind, item) for plugin in found for kind, item in plugin.items]
    items = [(plugin, kind, item) for plugin, kind, item in everything if name in (plugin.name, item.name)]
    if not items and name not in {plugin.name for plugin in found}:
        known = {plugin.name for plugin in found} | {item.name for _, _, item in everything}
        raise UnknownNameError("plugin or registered item", name, known)
    if as_json:
        print_json([_item(kind, item) | {"plugin": plugin.name} for plugin, kind, item in items])
        return
    for plugin, kind, item in items:
        summary = f": {item.summary}" if item.summary else ""
        click.echo(f"{kind} {item.name} (by {plugin.name}){summary}")
        if item.settings_source is not None and name == item.name:
            settings = item.settings
            assert settings is not None
            for field, value in settings().model_dump(mode="json").items():
                click.echo(f"  {item.name}.{field}={value}")
    for plugin in found:
        if plugin.name == name and not plugin.items:
            click.echo(f"{name} registers nothing; it implements {', '.join(plugin.hooks) or 'no hook'}")


def _as_dict(plugin: "LoadedPlugin") -> dict[str, Any]:
    return {
        "name": plugin.name,
        "builtin": plugin.is_builtin,
        "hooks": plugin.hooks,
        "items": [_item(kind, item) for kind, item in plugin.items],
    }


def _item(kind: str, item: Any) -> dict[str, Any]:
    return {"kind": kind, "name": item.name, "summary": item.summary}
