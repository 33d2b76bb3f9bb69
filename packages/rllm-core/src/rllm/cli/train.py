"""``rllm train``."""

__all__ = ["command"]

import signal
import sys
from typing import TYPE_CHECKING

import click

from rllm.cli.following import command_on
from rllm.cli.options import as_options, dry_run_option, run_options, settings_help
from rllm.cli.output import json_option, only_json, print_json

if TYPE_CHECKING:
    from rllm.config import TrainConfig
    from rllm.train import TrainResult


def _settings(context: click.Context, _: click.Parameter, value: bool) -> None:
    from rllm.config import TrainConfig

    settings_help(TrainConfig, context, value)


@click.command()
@run_options
@click.option("--resume", metavar="RUN", type=click.Path(file_okay=False),
              help="Go on with the run in this folder, from its newest checkpoint.")  # fmt: skip
@click.option("--allow-changes", is_flag=True, help="Resume although settings, agent or tasks have changed.")
@dry_run_option
@json_option
@click.option("--settings", "show", is_flag=True, is_eager=True, expose_value=False, callback=_settings,
              help="List every setting with its default.")  # fmt: skip
def command(
    tasks: str | None,
    settings: tuple[str, ...],
    config: str | None,
    resume: str | None,
    allow_changes: bool,
    is_dry: bool,
    as_json: bool,
    **options: str | None,
) -> None:
    """Train a model on TASKS with reinforcement learning.

    \b
    rllm train chain_sum
    rllm train my_tasks.jsonl --agent my_agent.py:solve --evaluator my_agent.py:grade
    rllm train chain_sum steps=40 optimizer.lr=1e-5 grpo.std=false
    rllm train --resume runs/train-chain_sum-20260101-120000
    """
    from rich.console import Console

    from rllm.cli.rehearsing import describe_dry_run
    from rllm.train import AgentTrainer, DryRun, TrainResult

    layer = as_options(tasks, settings, options)
    with only_json(as_json):
        trainer = AgentTrainer(
            config=config,
            settings=layer,
            resume=resume,
            allow_changes=allow_changes,
            console=Console(stderr=True) if as_json else None,
        )
        result = trainer.dry_run() if is_dry else trainer.train()
    if as_json:
        print_json(result)
    elif isinstance(result, DryRun):
        click.echo(describe_dry_run(result, "train"))
    else:
        click.echo(_closing(result, trainer.config))
    if isinstance(result, TrainResult) and result.stopped_by is not None:
        # As a shell or a scheduler has it for a program that a signal ended.
        sys.exit(128 + signal.Signals[result.stopped_by])


def _closing(result: "TrainResult", config: "TrainConfig") -> str:
    if result.stopped_by is not None:
        return (
            f"stopped by {result.stopped_by} after {result.steps} steps, which are saved\n"
            f"go on with: rllm train --resume {result.run_dir}"
        )
    lines = [f"trained {result.steps} steps in {result.training_s:.0f} s"]
    before, after = result.before, result.after
    if before is not None and after is not None:
        lines.append(
            f"held out: accuracy {before.accuracy:.3f} → {after.accuracy:.3f} "
            f"({after.accuracy - before.accuracy:+.3f}), reward {before.reward:.3f} → {after.reward:.3f} "
            f"({after.reward - before.reward:+.3f})"
        )
        if result.constant is not None:
            answer, value = result.constant
            lines.append(f"the best constant answer, {answer!r}, would score {value:.3f}")
    lines.append(f"run    {result.run_dir}")
    lines.append(f"model  {result.model_dir or 'as it was: no step had anything to learn from'}")
    lines.append(f"is its signal sound?  rllm run check {result.run_dir}")
    lines.append(f"try the model:        {command_on('eval', config, model=result.model_dir or config.model)}")
    return "\n".join(lines)
