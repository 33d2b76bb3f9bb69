"""Writes docs/commands.md from the commands' own help: no option is described twice.

    python tools/commands_page.py [FILE]

`make commands` runs it; a test fails where the page is not what this writes.
"""

import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from rllm.cli.app import root

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"

HEAD = """\
<!-- Written by tools/commands_page.py from the commands' help: change that, and run `make commands`. -->

# The command line

`rllm COMMAND --help` says the same. A wrong option is answered with exit status 2, a wrong setting or file with what is
wrong and status 1, before anything starts; Ctrl-C ends a command with 130. `KEY=VALUE` is a setting:
`rllm train --settings` lists them all, [Training](training.md) explains them.
"""


def page() -> str:
    """The whole page."""
    # The width of whose terminal it is must not change the page.
    context = click.Context(root, info_name="rllm", terminal_width=120)
    return HEAD + "".join(part for name in root.list_commands(context) for part in parts(context, name))


def parts(parent: click.Context, name: str) -> Iterator[str]:
    """A command's section, and those of its subcommands."""
    assert isinstance(parent.command, click.Group)
    command = parent.command.get_command(parent, name)
    assert command is not None, f"{name} is listed, and is no command"
    context = click.Context(command, info_name=name, parent=parent)
    yield f"\n{'#' * (context.command_path.count(' ') + 1)} {context.command_path}\n"
    if isinstance(command, click.Group):
        yield from prose(command.help or "")
        for inner in command.list_commands(context):
            yield from parts(context, inner)
        return
    yield f"\n```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
    yield from prose(command.help or "")
    records = (parameter.get_help_record(context) for parameter in command.params)
    # Of arguments, which the usage line names and the text explains, some releases of click give an empty record.
    options = [record for record in records if record is not None and record[1]]
    if options:
        yield "\n| option | |\n|---|---|\n"
        yield from (f"| `{names}` | {cell(text)} |\n" for names, text in options)


def prose(text: str) -> Iterator[str]:
    """A help text: its paragraphs, and what stands behind \\b as it stands."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            yield "\n```text\n" + paragraph.removeprefix("\b\n") + "\n```\n"
        else:
            yield "\n" + textwrap.fill(" ".join(paragraph.split()), 120, break_on_hyphens=False) + "\n"


def cell(text: str) -> str:
    """For a table."""
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    target.write_text(page(), encoding="utf-8")
