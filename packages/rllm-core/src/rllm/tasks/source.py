"""A task source whose tasks are at hand: what every loader and generator of this folder returns."""

__all__ = ["ListedTasks"]

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rllm.errors import TaskError
from rllm.protocols import Evaluator
from rllm.tasks.split import question_key
from rllm.types import Task


@dataclass(frozen=True)
class ListedTasks:
    """A ``TaskSource`` over two lists. Raises TaskError where an id stands twice or a question on both sides."""

    name: str
    train_tasks: tuple[Task, ...]
    held_out_tasks: tuple[Task, ...] = ()
    evaluator: Evaluator | None = None
    agent: str = "chat"
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        _check_ids(self.name, (*self.train_tasks, *self.held_out_tasks))
        trained = {question_key(task): task for task in self.train_tasks}
        for task in self.held_out_tasks:
            twin = trained.get(question_key(task))
            if twin is not None:
                raise TaskError(
                    f"{self.name}: the question of the held-out task {task.id!r} is also trained on, as task "
                    f"{twin.id!r} ({task.prompt[:80]!r}). A validation on it would measure memory: take it out of one"
                )

    def train(self) -> Sequence[Task]:
        """The tasks to train on."""
        return self.train_tasks

    def held_out(self) -> Sequence[Task]:
        """The tasks to validate on."""
        return self.held_out_tasks


def _check_ids(name: str, tasks: Iterable[Task]) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise TaskError(f"{name}: two tasks have the id {task.id!r}. Give each its own; groups are keyed by it")
        seen.add(task.id)
