"""Calls an evaluator on one episode, with a time limit, and makes a ``Reward`` or an ``EvaluatorError`` of it."""

__all__ = ["grade"]

import asyncio
import inspect
from dataclasses import dataclass
from typing import Any

from rllm.concurrency import call_in_thread
from rllm.errors import EvaluatorError
from rllm.protocols import Evaluator
from rllm.reward.evaluator import name_of
from rllm.reward.normalise import as_reward
from rllm.trace import no_session
from rllm.types import Episode, Reward, Task


@dataclass(frozen=True)
class _Raised:
    """What the evaluator raised, carried as a value: a thread or task must not be ended by it."""

    error: BaseException


async def grade(evaluator: Evaluator, task: Task, episode: Episode, *, timeout_s: float) -> Reward | None:
    """The episode's reward; None where the evaluator gives no grade.

    A plain function runs in a daemon thread of its own, a coroutine function on this loop, each in a copy of the
    context that is marked as outside the session. Raises EvaluatorError that names the evaluator and the task where it
    raises (its exception is the ``__cause__``), takes longer than ``timeout_s`` seconds, or returns no reward. A
    thread that hangs can't be ended: it is left behind, and keeps neither the loop nor the process.
    """
    name = f"the evaluator {name_of(evaluator)!r}"
    with no_session():
        running = asyncio.ensure_future(_outcome(evaluator, task, episode))
    try:
        await asyncio.wait({running}, timeout=timeout_s)
        if not running.done():
            raise EvaluatorError(
                f"{name} did not end within {timeout_s:g} seconds for task {task.id!r}. Mend what it waits for, or "
                "raise rollout.evaluator_timeout_s. (A hanging thread can't be ended: it is left behind.)"
            )
        if running.cancelled():
            raise EvaluatorError(f"{name} cancelled itself for task {task.id!r}: it must return a grade")
        outcome = running.result()
    finally:
        running.cancel()
    if isinstance(outcome, _Raised):
        error = outcome.error
        raise EvaluatorError(f"{name} raised {type(error).__name__} for task {task.id!r}: {error}") from error
    return as_reward(outcome, evaluator=name, task_id=task.id)


async def _outcome(evaluator: Evaluator, task: Task, episode: Episode) -> Any:
    """What the evaluator returned, awaited where it is awaitable, or what it raised."""
    if _is_async(evaluator):
        value: Any = evaluator(task, episode)
    else:
        value = await call_in_thread(_call, evaluator, task, episode)
    if not inspect.isawaitable(value):
        return value
    try:
        return await value
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:
        return _Raised(error)


def _call(evaluator: Evaluator, task: Task, episode: Episode) -> Any:
    # Also SystemExit, and time limits of other libraries that are no Exceptions: grading must not end a run.
    try:
        return evaluator(task, episode)
    except BaseException as error:
        return _Raised(error)


def _is_async(evaluator: Any) -> bool:
    """Whether calling it only makes a coroutine, so that no thread is needed."""
    function = getattr(evaluator, "function", evaluator)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
