"""A run is a folder: the configuration as resolved, the metrics, the trace, the log, the trained model."""

__all__ = ["RunFolder"]

import json
import logging
import os
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from rllm.errors import ConfigError


class RunFolder:
    """The files of one run, for one process at a time. ``resumes``: it holds the run already, else it must not.

    Raises ConfigError.
    """

    def __init__(self, path: Path, *, resumes: bool = False) -> None:
        self.path = path
        holds_run = (path / "config.yaml").exists()
        if holds_run and not resumes:
            raise ConfigError(
                f"the folder {str(path)!r} already holds a run; choose another run_dir, move it away, or go on with "
                f"it: rllm train --resume {path}"
            )
        if resumes and not holds_run:
            raise ConfigError(f"{str(path)!r} holds no run to resume: there is no config.yaml in it")
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(path / ".lock")
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigError(f"the run in {str(path)!r} is being worked on by another process") from None
        except OSError as error:
            raise ConfigError(f"the run's folder {str(path)!r} can't be made: {error.strerror}") from error
        self._handler = logging.FileHandler(path / "log.txt", encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger = logging.getLogger("rllm")
        if logger.level == logging.NOTSET:
            # The log holds more than warnings, unless the user has set a level. The console stays at warnings.
            logger.setLevel(logging.INFO)
        logger.addHandler(self._handler)
        self._metrics = (path / "metrics.jsonl").open("a", encoding="utf-8")

    @property
    def traces(self) -> Path:
        """The trace store."""
        return self.path / "traces.sqlite"

    @property
    def model(self) -> Path:
        """The trained model, a Hugging Face folder."""
        return self.path / "model"

    def write_config(self, settings: Mapping[str, Any]) -> None:
        """``config.yaml`` as resolved (``rllm train --config`` takes it back), and the versions it ran with."""
        partial = self.path / "config.yaml.partial"
        partial.write_text(yaml.safe_dump(dict(settings), sort_keys=False), encoding="utf-8")
        partial.replace(self.path / "config.yaml")
        self.write_json("versions.json", _versions())

    @property
    def checkpoints(self) -> Path:
        """What a stopped run goes on from."""
        return self.path / "checkpoints"

    @property
    def metrics_bytes(self) -> int:
        """The length of ``metrics.jsonl``."""
        return self._metrics.tell()

    def rewind_metrics(self, metrics_bytes: int) -> None:
        """Forget the lines that were written after the file had this length."""
        self._metrics.truncate(metrics_bytes)
        self._metrics.seek(0, os.SEEK_END)

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """One line of ``metrics.jsonl``, in the file when this returns."""
        self._metrics.write(json.dumps(metrics) + "\n")
        self._metrics.flush()

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """A JSON file, replaced whole."""
        partial = self.path / f"{name}.partial"
        partial.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        partial.replace(self.path / name)

    def close(self) -> None:
        """Close the files; the logger lets go of the log."""
        self._metrics.close()
        logging.getLogger("rllm").removeHandler(self._handler)
        self._handler.close()
        self._lock.release()


def default_run_dir(tasks: str, kind: str) -> Path:
    """``runs/<kind>-<tasks>-<time>``, in the current folder; a number is added where that exists."""
    name = Path(tasks).stem.partition(":")[0] or "run"
    base = Path("runs") / f"{kind}-{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidate, count = base, 1
    while candidate.exists():
        count += 1
        candidate = base.with_name(f"{base.name}-{count}")
    return candidate


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("rllm-core", "torch", "transformers", "peft", "numpy", "openai"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
