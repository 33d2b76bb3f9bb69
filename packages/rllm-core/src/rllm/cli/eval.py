"""``rllm eval``."""

__all__ = ["command"]

from typing import TYPE_CHECKING

import click

from rllm.cli.following import command_on
from rllm.cli.options import as_options, run_options, settings_help
from rllm.cli.output import json_option, only_json, print_json

if TYPE_CHECKING:
    from rllm.evals import EvalReport


def _settings(context: click.Context, _: click.Parameter, value: bool) -> None:
    from rllm.config import EvalConfig

    settings_help(EvalConfig, context, value)


@click.command()
@run_options
@json_option
@click.option("--settings", "show", is_flag=True, is_eager=True, expose_value=False, callback=_settings,
              help="List every setting with its default.")  # fmt: skip
def command(
    tasks: str | None, settings: tuple[str, ...], config: str | None, as_json: bool, **options: str | None
) -> None:
    """Evaluate a model on TASKS, held-out ones unless split=train is given.

    \b
    rllm eval chain_sum --model runs/train-chain_sum-20260101-120000/model
    rllm eval my_tasks.jsonl --agent my_agent.py:solve samples=4
    """
    import asyncio

    from rich.console import Console

    from rllm.config import EvalConfig
    from rllm.configure import GIVEN, read_config_file, resolve_layers
    from rllm.errors import ConfigError
    from rllm.evals import run_eval
    from rllm.models import find_model
    from rllm.plugins import get_plugins
    from rllm.types import Episode

    plugins = get_plugins()
    plugins.check_pending()
    layers = [(config or "", read_config_file(config) if config else {}), (GIVEN, as_options(tasks, settings, options))]
    resolved = resolve_layers(EvalConfig, layers, plugins)
    if not resolved.tasks:
        raise ConfigError("no tasks are given: name some of `rllm task list` (for example chain_sum), or a JSONL file")
    console = Console(stderr=True)
    with only_json(as_json), console.status("loading the model") as status:

        def progress(done: int, total: int, episode: Episode) -> None:
            status.update(f"rollouts {done}/{total}")

        report = asyncio.run(run_eval(resolved, plugins, progress=progress))
    if as_json:
        print_json(report)
    else:
        click.echo(describe(report))
        click.echo(f"read some: rllm run show {report.run_dir} --episodes 3")
        if find_model(resolved.model).kind != "provider":
            click.echo(f"train it:  {command_on('train', resolved, model=resolved.model)}")


def describe(report: "EvalReport") -> str:
    """The report as a person reads it."""
    s = report.summary
    lines = [
        f"{report.model} on {report.tasks}: {s.n_tasks} questions × {s.n_samples // s.n_tasks}, {report.seconds:.0f} s",
        f"reward    {s.reward:.3f} ± {1.96 * s.reward_se:.3f} (95 %, clustered by question)",
        f"accuracy  {s.accuracy:.3f} ± {1.96 * s.accuracy_se:.3f}",
    ]
    lines += [f"pass@{k}    {value:.3f}" for k, value in s.pass_at.items() if k > 1]
    if report.constant is not None:
        lines.append(f"the best constant answer, {report.constant[0]!r}, would score {report.constant[1]:.3f}")
    if s.n_failed:
        kinds = ", ".join(f"{count} {kind}" for kind, count in s.failures.items())
        lines.append(f"{s.n_failed} samples have no grade and count as 0: {kinds}; without them {s.reward_graded:.3f}")
    lines.append(f"run       {report.run_dir}")
    return "\n".join(lines)
