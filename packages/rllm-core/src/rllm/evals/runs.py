"""Runs as their folders tell of them: what `rllm run list|show|compare` read. Nothing is loaded, nothing is changed."""

__all__ = ["RunRecord", "differing_settings", "find_runs", "flat_settings", "read_run"]

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from rllm.configure import read_config_file
from rllm.errors import ConfigError
from rllm.evals.folder import read_metrics

State = Literal["running", "finished", "stopped", "ended early"]


@dataclass(frozen=True)
class RunRecord:
    """One run's folder."""

    path: Path
    kind: Literal["train", "eval", "sft"]
    state: State
    """``stopped``: asked to; ``ended early``: by an error, or killed."""
    settings: Mapping[str, Any]
    """By dotted name."""
    metrics: Sequence[Mapping[str, Any]]
    report: Mapping[str, Any] | None
    """``report.json``; None where the run has not come to its end."""
    changed_at: float
    """When its newest metric was written, seconds since 1970."""

    @property
    def rewards(self) -> list[float]:
        """Of the training batches, in their order."""
        return [line["reward/mean"] for line in self.metrics if "reward/mean" in line]

    @property
    def validations(self) -> list[tuple[int, float, float]]:
        """(step, reward, accuracy) of each validation or evaluation."""
        found = [
            (line["step"], line["validation/reward"], line["validation/accuracy"])
            for line in self.metrics
            if "validation/reward" in line
        ]
        if self.kind == "eval" and self.report is not None:
            summary = self.report["summary"]
            found.append((0, summary["reward"], summary["accuracy"]))
        return found

    @property
    def steps(self) -> int:
        """Batches trained on."""
        return max((line["step"] for line in self.metrics), default=0)


def find_runs(folder: Path) -> list[RunRecord]:
    """The runs below a folder, the newest last. Raises ConfigError where there is no such folder."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {str(folder)!r} with runs; name the one that yours are in")
    found = [read_run(path.parent) for path in folder.rglob("config.yaml")]
    return sorted(found, key=lambda run: (run.changed_at, str(run.path)))


def read_run(path: Path) -> RunRecord:
    """Raises ConfigError where the folder holds no run, or its files are damaged."""
    if not (path / "config.yaml").exists():
        raise ConfigError(f"{str(path)!r} holds no run: there is no config.yaml in it. See `rllm run list`")
    settings = dict(flat_settings(read_config_file(str(path / "config.yaml"))))
    report: dict[str, Any] | None = None
    name = "metrics.jsonl"
    try:
        metrics = read_metrics(path)
        name = "report.json"
        if (path / name).exists():
            report = json.loads((path / name).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(
            f"{str(path / name)!r} is damaged: {error}. Mend the line, or move the run's folder away"
        ) from error
    return RunRecord(
        path=path,
        kind="sft" if "data" in settings else "train" if "estimator" in settings else "eval",
        state=_state(path, report),
        settings=settings,
        metrics=metrics,
        report=report,
        changed_at=max((path / name).stat().st_mtime for name in ("config.yaml", "metrics.jsonl", "report.json")
                       if (path / name).exists()),
    )  # fmt: skip


def differing_settings(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """The settings that are not the same in all runs: name → its value in each (None where a run has it not)."""
    names = sorted({name for run in runs for name in run.settings} - {"run_dir"})
    found = {name: [run.settings.get(name) for run in runs] for name in names}
    return {name: values for name, values in found.items() if any(value != values[0] for value in values)}


def _state(path: Path, report: Mapping[str, Any] | None) -> State:
    lock = path / ".lock"
    if lock.exists():  # else to ask would be to make it
        try:
            with FileLock(lock).acquire(timeout=0):
                pass
        except (Timeout, OSError):
            return "running"
    if report is None:
        return "ended early"
    return "stopped" if report.get("stopped_by") else "finished"


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Nested settings by their dotted names."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flat_settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
