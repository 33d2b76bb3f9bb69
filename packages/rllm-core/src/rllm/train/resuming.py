"""Going on with a run: what must be as it was, and a clear word where it is not."""

__all__ = ["check_same_run", "identity_of", "restore", "settings_of_run"]

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rllm.configure import read_config_file
from rllm.errors import BackendError, ConfigError
from rllm.evals.runner import Parts
from rllm.protocols import TrainBackend
from rllm.train.checkpoints import Checkpoint
from rllm.types import Task

FREE = ("run_dir", "steps", "epochs", "time_limit_s", "checkpoint", "validation", "loggers")
"""What may change between the parts of a run without changing what was done so far."""

WORDS = {
    "agent": "the agent",
    "evaluator": "the evaluator",
    "train_tasks": "the training tasks (a checksum)",
    "held_out_tasks": "the held-out tasks (a checksum)",
    "data": "the file of conversations (a checksum)",
}


def identity_of(parts: Parts, train: Sequence[Task], held_out: Sequence[Task]) -> dict[str, str]:
    """What a run is beside its settings: objects given from Python have no setting, and files may have changed."""
    return {
        "agent": _name(parts.flow.function),
        "evaluator": _name(parts.evaluator),
        "train_tasks": _checksum(train),
        "held_out_tasks": _checksum(held_out),
    }


def check_same_run(
    folder: Path,
    settings: Mapping[str, Any],
    before: Mapping[str, str],
    now: Mapping[str, str],
    *,
    allow_changes: bool,
) -> list[str]:
    """What differs from the run as it was, in words. Raises ConfigError with them unless changes are allowed."""
    free = FREE
    if settings["optimizer"]["schedule"] != "constant":
        # The learning rates so far were made for the number of steps that was planned.
        free = tuple(name for name in FREE if name not in ("steps", "epochs", "time_limit_s"))
    old = read_config_file(str(folder / "config.yaml"))
    free = (*free, *old.get("loggers", ()), *settings.get("loggers", ()))
    found = [
        f"{name} was {old_value!r}, is {new_value!r}"
        for name, old_value, new_value in _differences(old, settings)
        if name.partition(".")[0] not in free
    ]
    found += [f"{WORDS[k]} was {before.get(k)}, is {v}" for k, v in now.items() if before.get(k) != v]
    if found and not allow_changes:
        raise ConfigError(
            f"the run in {str(folder)!r} can't go on as it was: {'; '.join(found)}. Give what it was started with, or "
            "allow it with --allow-changes (in Python allow_changes=True)"
        )
    return found


async def restore(backend: TrainBackend, start: Checkpoint, *, allow_changes: bool, say: Callable[[str], None]) -> None:
    """Put the backend where the checkpoint was. Raises BackendError, also for a missing optimizer state unless changes
    are allowed: then the optimizer begins anew, which is said."""
    try:
        await backend.restore(start.backend)
    except BackendError as error:
        if not allow_changes:
            raise
        await backend.restore(start.backend, with_optimizer=False)
        say(f"changed: the optimizer begins anew ({error})")


def _differences(old: Any, new: Any, prefix: str = "") -> Iterable[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from _differences(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else key)
    elif old != new:
        yield prefix, old, new


def _name(function: Any) -> str:
    """``file:function`` for what has such a name, else the class's."""
    if function is None:
        return "none"
    inner = getattr(function, "function", function)
    return str(getattr(inner, "__qualname__", type(inner).__qualname__))


def _checksum(tasks: Sequence[Task]) -> str:
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(repr((task.id, task.prompt, task.answer)).encode() + b"\n")
    return f"{len(tasks)}:{digest.hexdigest()[:12]}"


def settings_of_run(run_dir: str) -> dict[str, Any]:
    """The settings that a run was started with. Raises ConfigError where there is no run."""
    path = Path(run_dir) / "config.yaml"
    if not path.exists():
        raise ConfigError(f"{run_dir!r} holds no run to resume: there is no config.yaml in it. See `rllm run list`")
    return read_config_file(str(path))
