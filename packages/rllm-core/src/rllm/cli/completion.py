"""``rllm completion``: click's own completion, for the shells that it knows."""

__all__ = ["command"]

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the script that makes SHELL complete rllm's commands, options, tasks and models.

    \b
    bash   rllm completion bash >> ~/.bashrc
    zsh    rllm completion zsh >> ~/.zshrc
    fish   rllm completion fish > ~/.config/fish/completions/rllm.fish
    """
    from rllm.cli.app import root

    kind = get_completion_class(shell)
    assert kind is not None, f"click knows {shell}"
    click.echo(kind(root, {}, "rllm", "_RLLM_COMPLETE").source())
