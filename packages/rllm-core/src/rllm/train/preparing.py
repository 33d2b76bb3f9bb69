"""What is found and checked before anything starts: by a run, and by ``--dry-run`` in the same words."""

__all__ = ["Prepared", "prepare"]

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rllm.config import TrainConfig
from rllm.evals.runner import Parts, resolve_parts
from rllm.models import find_model
from rllm.plugins import PluginManager
from rllm.train.checks import check_config, check_limits, check_tasks
from rllm.train.schedule import planned_steps
from rllm.types import Task


@dataclass(frozen=True)
class Prepared:
    """The parts of a run whose settings, names and tasks are in order."""

    parts: Parts
    train_tasks: Sequence[Task]
    held_out: Sequence[Task]
    """As many as a validation takes."""
    total_steps: int | None
    """None where only the clock ends the run."""


def prepare(
    config: TrainConfig, plugins: PluginManager, *, tasks: Any = None, agent: Any = None, evaluator: Any = None
) -> Prepared:
    """Load what the configuration names, or take the objects given. Raises an RLLMError; nothing is written."""
    check_config(config, plugins)
    find_model(config.model)  # an unknown name is said before the run has a folder
    parts = resolve_parts(config, plugins, tasks=tasks, agent=agent, evaluator=evaluator)
    train_tasks, held_out = parts.source.train(), parts.source.held_out()
    check_tasks(parts.source, train_tasks, held_out)
    check_limits(config, len(train_tasks))
    if config.validation.limit is not None:
        held_out = held_out[: config.validation.limit]
    return Prepared(parts, train_tasks, held_out, planned_steps(config, len(train_tasks)))
