"""The root command. Commands are imported when called, so that ``rllm --help`` answers at once."""

__all__ = ["main"]

import importlib
import io
import sys

import click

COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("rllm.cli.train", "Train a model on tasks with reinforcement learning."),
    "sft": ("rllm.cli.sft", "Fine-tune a model on given conversations."),
    "eval": ("rllm.cli.eval", "Evaluate a model on tasks."),
    "run": ("rllm.cli.run", "List, show, compare and check runs."),
    "model": ("rllm.cli.model", "Set up, list, show and push models."),
    "task": ("rllm.cli.task", "List and show tasks."),
    "plugin": ("rllm.cli.plugin", "List and show plugins: who registered what."),
    "doctor": ("rllm.cli.doctor", "Look for what would keep rLLM from working here."),
    "init": ("rllm.cli.init", "Make a small agent project that trains."),
    "completion": ("rllm.cli.completion", "Print what makes a shell complete commands and names."),
}
"""Command → its module, and what the overview says of it."""


class LazyGroup(click.Group):
    """Knows its commands by name and summary, and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(COMMANDS[cmd_name][0]).command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            from rllm.errors import UnknownNameError

            raise click.UsageError(str(UnknownNameError("command", args[0], COMMANDS)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rllm-core", prog_name="rllm")
def root() -> None:
    """Train AI agents with reinforcement learning, with the agent's code left as it is.

    \b
    rllm init                     begin here: a small project of your own that trains
    rllm train chain_sum          trains SmolLM2-135M on this machine
    rllm eval chain_sum           what a model scores as it is
    """


def main() -> None:
    """The ``rllm`` command: an RLLMError ends it with its message alone, exit status 1; Ctrl-C with 130."""
    from rllm.errors import RLLMError

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A pipe on Windows, or an old locale, has no → or ▄: a question mark is better than no line at all.
            stream.reconfigure(errors="replace")
    try:
        root(prog_name="rllm", standalone_mode=False)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("stopped", err=True)
        sys.exit(130)
    except RLLMError as error:
        click.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(1)
