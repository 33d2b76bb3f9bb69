"""A run is a folder: the configuration as resolved, the metrics, the trace, the log, the trained model."""

__all__ = ["RunFolder", "check_run_dir", "default_run_dir", "read_metrics"]

import contextlib
import json
import logging
import os
import shutil
import sys
import time
import uuid
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from rllm.errors import ConfigError, RunFolderError
from rllm.trace import TraceStore


class RunFolder:
    """The files of one run, for one process at a time. ``resumes``: it holds the run already, else it must not.

    Raises ConfigError, or RunFolderError where the disk does not take it.
    """

    def __init__(self, path: Path, *, resumes: bool = False) -> None:
        self.path = path
        check_run_dir(path, resumes=resumes)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(path / ".lock")
            self._lock.acquire(timeout=0)
            self._handler = _LogFile(path / "log.txt", encoding="utf-8")
            # Unbuffered: what could not be written is known at once, and is not tried again later.
            self._metrics = (path / "metrics.jsonl").open("ab", buffering=0)
        except Timeout:
            raise ConfigError(f"the run in {str(path)!r} is being worked on by another process") from None
        except OSError as error:
            raise RunFolderError(
                f"the run's folder {str(path)!r} can't be made: {_reason(error)}. Choose another run_dir"
            ) from error
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger = logging.getLogger("rllm")
        if logger.level == logging.NOTSET:
            # The log holds more than warnings, unless the user has set a level. The console stays at warnings.
            logger.setLevel(logging.INFO)
        logger.addHandler(self._handler)

    @property
    def run_id(self) -> str:
        """What loggers know the run by, also when it is resumed."""
        file = self.path / "run_id"
        if not file.exists():
            self._replace("run_id", uuid.uuid4().hex[:12])
        return file.read_text(encoding="utf-8")

    @property
    def traces(self) -> Path:
        """The trace store."""
        return self.path / "traces.sqlite"

    @property
    def model(self) -> Path:
        """The trained model, a Hugging Face folder."""
        return self.path / "model"

    @property
    def adapter(self) -> Path:
        """What a LoRA run added to the model, a PEFT folder."""
        return self.path / "adapter"

    def write_config(self, settings: Mapping[str, Any]) -> None:
        """``config.yaml`` as resolved (``rllm train --config`` takes it back), and the versions it ran with."""
        self._replace("config.yaml", yaml.safe_dump(dict(settings), sort_keys=False))
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
        """One line of ``metrics.jsonl``, in the file when this returns. Raises RunFolderError."""
        line = memoryview((json.dumps(metrics) + "\n").encode())
        try:
            while line:
                line = line[self._metrics.write(line) :]
        except OSError as error:
            raise self._unwritten("metrics.jsonl", error) from error

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """A JSON file, replaced whole. Raises RunFolderError."""
        self._replace(name, json.dumps(data, indent=2) + "\n")

    def replace_folder(self, partial: Path, final: Path) -> None:
        """Put what was written to ``partial`` in the place of what was there before. Raises RunFolderError."""
        try:
            shutil.rmtree(final, ignore_errors=True)
            partial.replace(final)
        except OSError as error:
            raise self._unwritten(final.name, error) from error

    def _replace(self, name: str, text: str) -> None:
        partial = self.path / f"{name}.partial"
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(self.path / name)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise self._unwritten(name, error) from error

    def _unwritten(self, name: str, error: OSError) -> RunFolderError:
        return RunFolderError(
            f"{str(self.path / name)!r} can't be written: {_reason(error)}. Free space there, or choose another "
            "run_dir; a run that was going on can be resumed"
        )

    def close(self) -> None:
        """Close the files; the logger lets go of the log."""
        self._metrics.close()
        logging.getLogger("rllm").removeHandler(self._handler)
        with contextlib.suppress(OSError):
            self._handler.close()
        self._lock.release()


def check_run_dir(path: Path, *, resumes: bool) -> None:
    """Raise ConfigError where a new run would meet another one in its folder, or a resumed one finds none."""
    holds_run = (path / "config.yaml").exists()
    if holds_run and not resumes and _has_begun(path):
        raise ConfigError(
            f"the folder {str(path)!r} already holds a run; choose another run_dir, move it away, or go on with "
            f"it: rllm train --resume {path}"
        )
    if path.exists() and not path.is_dir():
        raise ConfigError(f"the run's folder {str(path)!r} is a file. Choose another run_dir")
    if resumes and not holds_run:
        raise ConfigError(f"{str(path)!r} holds no run to resume: there is no config.yaml in it. See `rllm run list`")


def _has_begun(path: Path) -> bool:
    """Whether a run got as far as to measure or ask anything; one whose model or device was not there did not, and its
    folder may be taken again."""
    if any((path / name).exists() for name in ("report.json", "checkpoints")):
        return True
    metrics, traces = path / "metrics.jsonl", path / "traces.sqlite"
    if metrics.exists() and metrics.stat().st_size:
        return True
    if not traces.exists():
        return False
    with TraceStore(traces) as store:
        return store.mark().steps > 0


class _LogFile(logging.FileHandler):
    """A log that can't be written is no reason to end a run, nor for a traceback per line: it is said once."""

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._has_failed:
            self._has_failed = True
            sys.stderr.write(f"the log {self.baseFilename} can't be written and lacks lines: {_reason(error)}\n")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's ``metrics.jsonl``, but for one that was half written when the run died."""
    file = path / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


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
