"""``rllm sft``."""

__all__ = ["command"]

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

import click

from rllm.cli.options import as_options, dry_run_option, settings_help
from rllm.cli.output import json_option, only_json, print_json

if TYPE_CHECKING:
    from rllm.train.sft import SftResult


def _settings(context: click.Context, _: click.Parameter, value: bool) -> None:
    from rllm.config import SftConfig

    settings_help(SftConfig, context, value)


@click.command()
@click.argument("data", required=False)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--model", help="A name of `rllm model list`, a folder, or a hub id.")
@click.option("--backend", help="The training backend [default: tinker].")
@click.option("--config", type=click.Path(dir_okay=False), help="A YAML file of settings.")
@click.option("--resume", metavar="RUN", type=click.Path(file_okay=False),
              help="Go on with the run in this folder, from its newest checkpoint.")  # fmt: skip
@click.option("--allow-changes", is_flag=True, help="Resume although settings or data have changed.")
@dry_run_option
@json_option
@click.option("--settings", "show", is_flag=True, is_eager=True, expose_value=False, callback=_settings,
              help="List every setting with its default.")  # fmt: skip
def command(
    data: str | None,
    settings: tuple[str, ...],
    config: str | None,
    resume: str | None,
    allow_changes: bool,
    is_dry: bool,
    as_json: bool,
    **options: str | None,
) -> None:
    """Fine-tune a model on the conversations in DATA (JSON Lines or Parquet): the assistant's tokens are learnt.

    \b
    rllm sft chats.jsonl epochs=3
    rllm sft chats.jsonl lora.rank=16 optimizer.lr=5e-4
    rllm train my_tasks.jsonl --model runs/sft-chats-20260101-120000/model
    """
    from rich.console import Console

    from rllm.cli.rehearsing import describe_dry_run
    from rllm.config import SftConfig
    from rllm.configure import GIVEN, read_config_file, resolve_layers
    from rllm.plugins import get_plugins
    from rllm.train.dry_run import dry_sft
    from rllm.train.resuming import settings_of_run
    from rllm.train.sft import sft
    from rllm.train.stopping import Stopping

    plugins = get_plugins()
    layer = as_options(data, settings, options, named="data")
    layers = [(config or "", read_config_file(config) if config else {}), (GIVEN, layer)]
    if resume is not None:
        layers = [(resume, settings_of_run(resume)), *layers, (GIVEN, {"run_dir": resume})]
    resolved = resolve_layers(SftConfig, layers, plugins)
    resumes = resume is not None
    if is_dry:
        plan = dry_sft(resolved, plugins, layers=layers, resume=resumes, allow_changes=allow_changes)
        if as_json:
            print_json(plan)
        else:
            click.echo(describe_dry_run(plan, "sft"))
        return
    stopping, console = Stopping(listens=True), Console(stderr=True) if as_json else None
    try:
        with only_json(as_json):
            result = asyncio.run(
                sft(
                    resolved,
                    plugins,
                    console=console,
                    resume=resumes,
                    allow_changes=allow_changes,
                    stopping=stopping,
                )
            )
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    if as_json:
        print_json(result)
    else:
        click.echo(_closing(result))
    if result.stopped_by is not None:
        sys.exit(128 + signal.Signals[result.stopped_by])


def _closing(result: "SftResult") -> str:
    if result.stopped_by is not None:
        return (
            f"stopped by {result.stopped_by} after {result.steps} steps, which are saved\n"
            f"go on with: rllm sft --resume {result.run_dir}"
        )
    lines = [f"trained {result.steps} steps in {result.training_s:.0f} s"]
    if result.before is not None and result.after is not None:
        lines.append(f"held out: loss {result.before:.4f} → {result.after:.4f} nats a token")
    lines += [f"run    {result.run_dir}", f"model  {result.model_dir}"]
    lines.append(f"go on with reinforcement learning: rllm train TASKS --model {result.model_dir}")
    return "\n".join(lines)
