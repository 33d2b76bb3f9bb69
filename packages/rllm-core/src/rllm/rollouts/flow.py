"""``@rllm.rollout`` and how a flow is called: sync or async, with the task or with the task and its configuration."""

__all__ = ["Rollout", "as_flow", "rollout"]

import functools
import inspect
from collections.abc import Callable
from typing import Any

from rllm.concurrency import call_in_thread
from rllm.config import AgentConfig
from rllm.errors import ConfigError
from rllm.loading import load_object
from rllm.plugins import PluginManager, get_named
from rllm.trace import instrument_openai, rollouts_running
from rllm.types import Task


class Rollout:
    """An agent that can be rolled out; calling it calls the function it wraps, unchanged."""

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        if not callable(function):
            raise ConfigError(f"an agent must be a function of the task, got {function!r}")
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self._takes_config = _count_parameters(function, self.name) == 2
        call = getattr(function, "__call__", None)  # noqa: B004 - an object's call may be the coroutine function
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __repr__(self) -> str:
        return f"<rllm.rollout {self.name}>"

    async def run(self, task: Task, config: AgentConfig) -> Any:
        """One call of the flow: a coroutine is awaited here, a plain function runs in a thread with the context."""
        arguments = (task, config) if self._takes_config else (task,)
        if self._is_async:
            return await self.function(*arguments)
        result = await call_in_thread(self.function, *arguments)
        # A plain function may hand back a coroutine, as a lambda around an async function does.
        return await result if inspect.isawaitable(result) else result


def rollout(function: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Mark a function as an agent: ``flow(task)`` or ``flow(task, config)``, sync or async.

    It returns None (the last reply's text is the output), a value (the output), a ``Trajectory`` or an ``Episode``
    (which may name roles and rewards; token ids always come from the recorded calls).
    """
    if function is None:
        return functools.partial(Rollout, name=name)
    return Rollout(function, name)


def as_flow(agent: Any, plugins: PluginManager) -> Rollout:
    """The flow that ``agent`` means: a function, ``file.py:name``, ``module:name``, or a registered name."""
    if isinstance(agent, Rollout):
        return agent
    if not isinstance(agent, str):
        return Rollout(agent)
    if ":" in agent:
        # Loaded as inside a rollout: a client that the file makes then needs no key, and can't reach a provider.
        instrument_openai()
        with rollouts_running():
            return _as_rollout(load_object(agent, "agent"), agent)
    return _as_rollout(get_named(plugins, "agent", agent).value, agent)


def _as_rollout(found: Any, name: str) -> Rollout:
    if isinstance(found, Rollout):
        return found
    if not callable(found):
        raise ConfigError(f"the agent {name!r} is a {type(found).__name__}; it must be a function of the task")
    return Rollout(found)


def _count_parameters(function: Callable[..., Any], name: str) -> int:
    """1 or 2: how many positional arguments the flow takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if named or len(required) > 2 or not positional:
        raise ConfigError(
            f"the agent {name!r} has the parameters {inspect.signature(function)}; "
            "it must be callable as agent(task) or agent(task, config)"
        )
    # A second parameter is the configuration only if it is required or called so: defaults stay the agent's own.
    is_config = len(required) == 2 or (len(positional) > 1 and positional[1].name == "config")
    return 2 if is_config else 1
