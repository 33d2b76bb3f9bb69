"""``rllm sft``."""

__all__ = ["command"]

import asyncio
import signal
import sys

import click

from rllm.cli.options import as_options, settings_help


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
@click.option("--settings", "show", is_flag=True, is_eager=True, expose_value=False, callback=_settings,
              help="List every setting with its default.")  # fmt: skip
def command(
    data: str | None,
    settings: tuple[str, ...],
    config: str | None,
    resume: str | None,
    allow_changes: bool,
    **options: str | None,
) -> None:
    """Fine-tune a model on the conversations in DATA (JSON Lines or Parquet): the assistant's tokens are learnt.

    \b
    rllm sft chats.jsonl epochs=3
    rllm sft chats.jsonl lora.rank=16 optimizer.lr=5e-4
    rllm train my_tasks.jsonl --model runs/sft-chats-20260101-120000/model
    """
    from rllm.config import SftConfig
    from rllm.configure import read_config_file, resolve_config
    from rllm.plugins import get_plugins
    from rllm.train.resuming import settings_of_run
    from rllm.train.sft import sft
    from rllm.train.stopping import Stopping

    plugins = get_plugins()
    layer = as_options(data, settings, options, named="data")
    layers = [read_config_file(config) if config else {}, layer]
    if resume is not None:
        layers = [settings_of_run(resume), *layers, {"run_dir": resume}]
    resolved = resolve_config(SftConfig, layers, plugins)
    stopping = Stopping(listens=True)
    try:
        result = asyncio.run(
            sft(resolved, plugins, resume=resume is not None, allow_changes=allow_changes, stopping=stopping)
        )
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    if result.stopped_by is not None:
        click.echo(f"stopped by {result.stopped_by} after {result.steps} steps, which are saved")
        click.echo(f"go on with: rllm sft --resume {result.run_dir}")
        sys.exit(128 + signal.Signals[result.stopped_by])
    click.echo(f"trained {result.steps} steps in {result.training_s:.0f} s")
    if result.before is not None and result.after is not None:
        click.echo(f"held out: loss {result.before:.4f} → {result.after:.4f} nats a token")
    click.echo(f"run    {result.run_dir}\nmodel  {result.model_dir}")
    click.echo(f"go on with reinforcement learning: rllm train TASKS --model {result.model_dir}")
