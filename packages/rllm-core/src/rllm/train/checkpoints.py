"""Checkpoints: all that a run needs to go on where it was, in folders that are there whole or not at all.

    checkpoints/step-000020/
        backend/          weights, optimizer, version, as the backend writes them
        checkpoint.json   the cursor: how far the run is, and what its other files held then; a checksum of every file

Random numbers are functions of the seed and of what they are for, and between two steps nothing is in flight, so the
number of steps says all about where the run was. A folder is written under another name, flushed to the disk, and
renamed; older ones go only after that.
"""

__all__ = ["Checkpoint", "Checkpoints", "Cursor"]

import asyncio
import json
import logging
import os
import shutil
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rllm.config import CheckpointConfig
from rllm.errors import CheckpointError
from rllm.protocols import TrainBackend
from rllm.trace import StoreMark

log = logging.getLogger("rllm.train")

STATE = "checkpoint.json"
PREFIX = "step-"
CAN_FLUSH_FOLDERS = os.name != "nt"
"""Windows opens no folder, and keeps names by itself."""


@dataclass(frozen=True)
class Cursor:
    """How far a run is."""

    steps: int
    """Batches that the weights were trained on."""
    training_s: float
    before: Mapping[str, Any] | None
    """The validation before training, as ``Summary.as_dict`` has it."""
    is_validated: bool
    """Whether the validation that is due after these steps has been made (or none is)."""
    reward: float | None
    """Of that validation, where there was one: what the best checkpoint is chosen by."""
    traces: StoreMark
    metrics_bytes: int
    """What traces and metrics held; what was written since belongs to a step that is done again."""
    identity: Mapping[str, str]
    """What must be the same when the run goes on: the agent's and the evaluator's names, a checksum of the tasks."""

    @classmethod
    def of_a_new_run(cls, identity: Mapping[str, str]) -> "Cursor":
        """Before anything was done."""
        return cls(
            steps=0, training_s=0.0, before=None, is_validated=False, reward=None, traces=StoreMark(0, 0),
            metrics_bytes=0, identity=identity,
        )  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """One that was found whole."""

    path: Path
    cursor: Cursor

    @property
    def backend(self) -> Path:
        return self.path / "backend"


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, settings: CheckpointConfig, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._settings = settings
        self._say = say
        self._saved_at = time.monotonic()
        self._saved_steps: int | None = None

    def is_due(self, steps: int) -> bool:
        """Whether one should be written now, after so many steps."""
        every = self._settings.every_steps
        if every is not None and steps % every == 0:
            return True
        every_s = self._settings.every_s
        return every_s is not None and time.monotonic() - self._saved_at >= every_s

    async def save(self, backend: TrainBackend, cursor: Cursor) -> None:
        """Write one, unless this step has one; then drop those that ``keep`` does not cover.

        Raises CheckpointError where the disk does not take it; the earlier ones are left as they were.
        """
        if self._saved_steps == cursor.steps:
            return
        final = self._folder / f"{PREFIX}{cursor.steps:06d}"
        partial = final.with_name(f".{final.name}.partial")
        try:
            await asyncio.to_thread(_fresh, partial / "backend")
            await backend.save(partial / "backend")
            await asyncio.to_thread(_seal, partial, final, asdict(cursor))
            await asyncio.to_thread(self._prune, cursor.steps, self._settings.keep)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(
                f"the checkpoint of step {cursor.steps} can't be written to {str(self._folder)!r}: "
                f"{error.strerror or error}. Free space there and resume; the earlier checkpoints are whole"
            ) from error
        self._saved_at, self._saved_steps = time.monotonic(), cursor.steps

    def newest(self) -> Checkpoint | None:
        """The newest that is whole; those that are damaged are named. None: the run ended before its first one.

        Raises CheckpointError where all are damaged.
        """
        for path in self._folder.glob(f".{PREFIX}*.partial"):
            shutil.rmtree(path, ignore_errors=True)
        found = sorted(self._folder.glob(f"{PREFIX}*"), reverse=True)
        for path in found:
            problem, cursor = _read(path)
            if cursor is not None:
                self._saved_steps = cursor.steps
                return Checkpoint(path, cursor)
            self._say(f"the checkpoint {path.name} is damaged ({problem}); an earlier one is used")
        if found:
            raise CheckpointError(
                f"all checkpoints in {str(self._folder)!r} are damaged: there is nothing to resume from. Start the run "
                "again with another run_dir"
            )
        return None

    def finish(self) -> None:
        """The run has ended: its last state is enough, beside what is kept on purpose."""
        if self._saved_steps is not None:
            self._prune(self._saved_steps, keep=1)

    def _prune(self, newest: int, keep: int) -> None:
        kept = {newest, *sorted(s for s in self._steps() if s <= newest)[-keep:]}
        if self._settings.keep_every is not None:
            kept |= {steps for steps in self._steps() if steps % self._settings.keep_every == 0}
        if self._settings.keep_best and (best := self._best()) is not None:
            kept.add(best)
        for steps in self._steps() - kept:
            shutil.rmtree(self._folder / f"{PREFIX}{steps:06d}")

    def _steps(self) -> set[int]:
        return {int(path.name.removeprefix(PREFIX)) for path in self._folder.glob(f"{PREFIX}*")}

    def _best(self) -> int | None:
        """The step of the best validation, the latest of equals."""
        rewards: dict[int, float] = {}
        for steps in sorted(self._steps()):
            reward = json.loads((self._folder / f"{PREFIX}{steps:06d}" / STATE).read_text())["cursor"]["reward"]
            if reward is not None:
                rewards[steps] = reward
        return max(sorted(rewards, reverse=True), key=rewards.__getitem__) if rewards else None


def _fresh(folder: Path) -> None:
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.mkdir(parents=True)


def _seal(partial: Path, final: Path, cursor: Mapping[str, Any]) -> None:
    """Add checksums, flush all to the disk, and give the folder its name."""
    files = sorted(path for path in partial.rglob("*") if path.is_file())
    sums = {path.relative_to(partial).as_posix(): _checksum(path) for path in files}
    (partial / STATE).write_text(json.dumps({"cursor": cursor, "files": sums}, indent=2) + "\n", encoding="utf-8")
    for path in (*files, partial / STATE, partial / "backend", partial):
        _flush(path)
    if final.exists():
        # Of a run that was resumed from an earlier one: it is done again, with the same outcome.
        shutil.rmtree(final)
    partial.rename(final)
    _flush(final.parent)


def _read(path: Path) -> tuple[str, Cursor | None]:
    """A checkpoint's cursor, or what is wrong with it."""
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        for name, expected in state["files"].items():
            if _checksum(path / name) != expected:
                return f"{name} is not what was written", None
        return "", Cursor(**state["cursor"] | {"traces": StoreMark(**state["cursor"]["traces"])})
    except OSError as error:
        return f"{Path(error.filename or path).name}: {error.strerror}", None
    except (ValueError, KeyError, TypeError) as error:
        return f"{STATE} can't be read: {error}", None


def _checksum(path: Path) -> str:
    """Size and CRC-32: against half-written and damaged files, not against anyone's malice."""
    crc, size = 0, 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            crc, size = zlib.crc32(block, crc), size + len(block)
    return f"{size}:{crc:08x}"


def _flush(path: Path) -> None:
    is_folder = path.is_dir()
    if is_folder and not CAN_FLUSH_FOLDERS:
        return
    # For writing too: Windows flushes nothing that is open for reading alone.
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
