"""``@rllm.evaluator`` and what may stand for an evaluator: a function, ``file.py:name``, or a registered name."""

__all__ = ["NamedEvaluator", "as_evaluator", "evaluator", "name_of"]

import functools
import inspect
from collections.abc import Callable
from typing import Any, overload

from rllm.errors import ConfigError
from rllm.loading import load_object
from rllm.plugins import PluginManager, get_named
from rllm.protocols import Evaluator
from rllm.types import Episode, Task


class NamedEvaluator:
    """An evaluator with a name; calling it calls the function it wraps, unchanged."""

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        if not callable(function):
            raise ConfigError(f"an evaluator must be a function of the task and the episode, got {function!r}")
        self.name = name or name_of(function)
        _check_parameters(function, self.name)
        functools.update_wrapper(self, function, updated=())
        self.function = function

    def __call__(self, task: Task, episode: Episode) -> Any:
        return self.function(task, episode)

    def __repr__(self) -> str:
        return f"<rllm.evaluator {self.name}>"


@overload
def evaluator(function: Callable[..., Any], *, name: str | None = None) -> NamedEvaluator: ...


@overload
def evaluator(function: None = None, *, name: str | None = None) -> Callable[[Callable[..., Any]], NamedEvaluator]: ...


def evaluator(
    function: Callable[..., Any] | None = None, *, name: str | None = None
) -> NamedEvaluator | Callable[[Callable[..., Any]], NamedEvaluator]:
    """Mark a function as an evaluator: ``grade(task, episode)``, sync or async.

    It returns a bool, a finite number, ``(value, is_correct)`` or a ``Reward``; None where there is no grade. A plain
    function is called in a thread of its own, many at a time, so what it shares must bear that. Model calls inside go
    where their client sends them, never into the rollout's session.
    """

    def wrap(wrapped: Callable[..., Any]) -> NamedEvaluator:
        return NamedEvaluator(wrapped, name)

    return wrap if function is None else wrap(function)


def as_evaluator(chosen: Any, plugins: PluginManager) -> Evaluator:
    """The evaluator that ``chosen`` means: a function, ``file.py:name``, ``module:name``, or a registered name.

    Raises ConfigError where it can't be called with a task and an episode, UnknownNameError where nobody knows it.
    """
    if isinstance(chosen, str):
        found = load_object(chosen, "evaluator") if ":" in chosen else get_named(plugins, "evaluator", chosen).value
        if not callable(found):
            raise ConfigError(f"the evaluator {chosen!r} is a {type(found).__name__}; it must be a function")
        chosen = found
    return chosen if isinstance(chosen, NamedEvaluator) else NamedEvaluator(chosen)


def name_of(function: Any) -> str:
    """How messages call an evaluator: its own ``name``, else the function's, else its type's."""
    named = getattr(function, "name", None)
    return named if isinstance(named, str) else getattr(function, "__name__", type(function).__name__)


def _check_parameters(function: Callable[..., Any], name: str) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a callable of C says nothing of its parameters
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise ConfigError(
            f"the evaluator {name!r} has the parameters {signature}; it must be callable as {name}(task, episode)"
        ) from error
