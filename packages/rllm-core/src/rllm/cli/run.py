"""``rllm run``: what runs there are, what one came to, how two differ, and why a reward is flat."""

__all__ = ["command"]

import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rllm.cli.output import json_option, print_json

if TYPE_CHECKING:
    from rllm.evals.runs import RunRecord
    from rllm.types import Episode


@click.group()
def command() -> None:
    """List, show, compare and check runs."""


@command.command("list")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path("runs"))
@json_option
def list_runs(folder: Path, as_json: bool) -> None:
    """The runs below FOLDER [default: runs], the newest last."""
    from rllm.evals.runs import find_runs

    runs = find_runs(folder)
    if as_json:
        print_json([_as_dict(run) for run in runs])
        return
    rows = [("run", "state", "tasks", "model", "steps", "held out", "changed")]
    for run in runs:
        changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.changed_at))
        name, settings = str(run.path.relative_to(folder)), run.settings
        trained_on = settings["data" if run.kind == "sft" else "tasks"]
        rows.append((name, run.state, trained_on, settings["model"], str(run.steps), _held_out(run), changed))
    _table(rows)


@command.command("show")
@click.argument("run", type=click.Path(file_okay=False, path_type=Path))
@click.option("--episodes", type=click.IntRange(min=0), default=0, metavar="N",
              help="The newest N rollouts: what was asked, said, and how it was graded.")  # fmt: skip
@json_option
def show(run: Path, episodes: int, as_json: bool) -> None:
    """What RUN came to: its rewards, its validations, and the settings that are not the defaults."""
    from rllm.evals.runs import read_run
    from rllm.train.display import curve

    record = read_run(run)
    newest = _newest_episodes(run, episodes)
    if as_json:
        print_json(_as_dict(record) | {"episodes": newest} | {"metrics": record.metrics})
        return
    click.echo(f"{record.path}: {record.kind}, {record.state}, {record.steps} steps")
    if record.rewards:
        low, high = min(record.rewards), max(record.rewards)
        click.echo(f"reward    {curve(record.rewards, 60)}  {low:.3f} to {high:.3f}")
    for step, reward, accuracy in record.validations:
        click.echo(f"step {step:<5}reward {reward:.3f}, accuracy {accuracy:.3f} on held-out questions")
    for name, value in sorted(_not_default(record).items()):
        click.echo(f"  {name}={value}")
    for episode in newest:
        reward = "no grade" if episode.reward is None else f"reward {episode.reward.value:g}"
        click.echo(f"\n{episode.task.id}, rollout {episode.sample}: {reward}")
        click.echo(f"asked: {episode.task.prompt}\nsaid:  {_short(episode.output)}")
        if episode.failure is not None:
            click.echo(f"failed: {episode.failure.kind}: {episode.failure.message}")


@command.command("compare")
@click.argument("runs", nargs=-1, required=True, type=click.Path(file_okay=False, path_type=Path))
@json_option
def compare(runs: tuple[Path, ...], as_json: bool) -> None:
    """RUNS side by side: what they came to, and the settings that differ."""
    from rllm.evals.runs import differing_settings, read_run
    from rllm.train.display import curve

    if len(runs) < 2:
        raise click.UsageError("name at least two runs")
    records = [read_run(path) for path in runs]
    if as_json:
        print_json({"runs": [_as_dict(record) for record in records], "differing": differing_settings(records)})
        return
    bounds = [reward for record in records for reward in record.rewards] or [0.0]
    rows: list[Sequence[str]] = [("", *(record.path.name for record in records))]
    rows.append(("state", *(record.state for record in records)))
    rows.append(("steps", *(str(record.steps) for record in records)))
    rows.append(("held out", *(_held_out(record) for record in records)))
    rows.append(("reward", *(curve(record.rewards, 24, min(bounds), max(bounds)) for record in records)))
    for name, values in differing_settings(records).items():
        rows.append((name, *(str(value) for value in values)))
    _table(rows)


@command.command("check")
@click.argument("run", type=click.Path(file_okay=False, path_type=Path))
@json_option
def check(run: Path, as_json: bool) -> None:
    """Why is the reward flat? What RUN's metrics say of its learning signal; exit status 1 where that is a problem."""
    from rllm.evals.runs import read_run
    from rllm.train.signal_report import signal_report

    record = read_run(run)
    findings = signal_report(record.metrics)
    if as_json:
        print_json({"run": str(run), "steps": record.steps, "findings": findings})
    elif not any("rollout/count" in line for line in record.metrics):
        click.echo(f"{run}: no step of training has been finished yet, so there is nothing to check")
    else:
        for finding in findings:
            click.echo(f"{finding.name}: {finding}")
        if not findings:
            click.echo(f"{run}: {record.steps} steps, nothing found: the signal is sound")
        click.echo(f"read some rollouts: rllm run show {run} --episodes 3")
    if findings:
        sys.exit(1)


def _as_dict(run: "RunRecord") -> dict[str, Any]:
    """A run for ``--json``."""
    validations = [{"step": step, "reward": reward, "accuracy": acc} for step, reward, acc in run.validations]
    return {
        "path": run.path,
        "kind": run.kind,
        "state": run.state,
        "steps": run.steps,
        "changed_at": run.changed_at,
        "rewards": run.rewards,
        "validations": validations,
        "settings": run.settings,
        "report": run.report,
    }


def _newest_episodes(run: Path, count: int) -> "list[Episode]":
    if not count:
        return []
    from rllm.errors import ConfigError
    from rllm.trace import TraceStore

    if not (run / "traces.sqlite").exists():
        raise ConfigError(f"the run in {str(run)!r} holds no rollouts (no traces.sqlite): leave --episodes out")
    with TraceStore(run / "traces.sqlite") as store:
        return list(store.episodes(newest=count))


def _held_out(run: "RunRecord") -> str:
    if not run.validations:
        return "-"
    first, last = run.validations[0][1], run.validations[-1][1]
    return f"{first:.3f}" if len(run.validations) == 1 else f"{first:.3f} → {last:.3f}"


def _not_default(run: "RunRecord") -> dict[str, Any]:
    from rllm.config import EvalConfig, SftConfig, TrainConfig
    from rllm.evals.runs import flat_settings

    kind = {"train": TrainConfig, "eval": EvalConfig, "sft": SftConfig}[run.kind]
    defaults = dict(flat_settings(kind().model_dump(mode="json")))
    return {name: value for name, value in run.settings.items() if name in defaults and value != defaults[name]}


def _short(output: Any) -> str:
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return text if len(text) <= 500 else f"{text[:500]}… ({len(text)} characters)"


def _table(rows: Iterable[Sequence[str]]) -> None:
    rows = list(rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
