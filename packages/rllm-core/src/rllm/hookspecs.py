"""Every hook that a plugin may implement, on one page.

A plugin is a module (or object) with functions of these names marked ``@rllm.hookimpl``, installed under the entry
point group ``rllm``. A function may leave out arguments that it does not need.

Registration hooks are called once, when the plugin is loaded; a failure there is loud and names the plugin. Hooks
select and observe: data goes through ordinary functions, and no hook is ever called per token.

``register`` is ``register(name, value, *, summary="", settings=None)``: ``settings`` is a pydantic model whose
fields all have defaults; they appear in the configuration under ``name``, and the value gets the instance as its
last argument. The core's own features are registered in just this way (see ``rllm.plugins.BUILTIN``).
"""

from __future__ import annotations

__all__ = ["hookimpl", "hookspec"]

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rllm.plugins import Register
    from rllm.trace import Session
    from rllm.train import UpdateReport
    from rllm.types import Episode, Group, Step

hookspec = pluggy.HookspecMarker("rllm")
hookimpl = pluggy.HookimplMarker("rllm")


# --- registration -----------------------------------------------------------------------------------------------


@hookspec
def rllm_register_tasks(register: Register) -> None:
    """Register task sources: ``value()`` or ``value(settings)`` returns a ``TaskSource``."""


@hookspec
def rllm_register_evaluators(register: Register) -> None:
    """Register graders by name: ``value(task, episode)``, see ``rllm.evaluator``."""


@hookspec
def rllm_register_agents(register: Register) -> None:
    """Register agents by name: ``value(task)`` or ``value(task, config)``, see ``rllm.rollout``."""


@hookspec
def rllm_register_estimators(register: Register) -> None:
    """Register advantage estimators: ``value(rewards)`` or ``value(rewards, settings)``, see ``Estimator``.

    ``register(…, min_group=1)`` for one that compares no siblings: without it, groups of one are skipped and counted.
    """


@hookspec
def rllm_register_losses(register: Register) -> None:
    """Register losses: ``value(logprobs, inputs)`` or ``value(logprobs, inputs, settings)``, see ``Loss``."""


@hookspec
def rllm_register_backends(register: Register) -> None:
    """Register training backends: ``value(request)`` returns a ``TrainBackend``, see ``BackendRequest``.

    ``register(…, rehearse=function)`` for one that can say what a run takes, see ``Rehearsal``.
    """


@hookspec
def rllm_register_loggers(register: Register) -> None:
    """Register loggers: ``value(request)`` or ``value(request, settings)``, see ``Logger`` and ``LoggerRequest``."""


# --- around a rollout -------------------------------------------------------------------------------------------


@hookspec
def rllm_rollout_context(session: Session) -> AbstractContextManager[object] | None:
    """Called before each rollout, in its context; the returned context manager is entered around the flow.

    This is where an adapter attaches to its framework. An error here is an infrastructure failure of the rollout.
    """


# --- notifications: an error in one is logged with the plugin's name and never stops a run ---------------------


@hookspec
def rllm_session_started(session: Session) -> None:
    """A session was opened for a rollout, before the flow starts. Called in the loop's thread."""


@hookspec
def rllm_step_recorded(session: Session, step: Step) -> None:
    """A step was written to the trace store, before the agent gets its answer. Called in the gateway's thread."""


@hookspec
def rllm_episode_finished(episode: Episode) -> None:
    """A rollout ended and was graded (or failed, see ``episode.failure``). Called in the loop's thread."""


@hookspec
def rllm_group_scored(group: Group, advantages: list[float]) -> None:
    """A group's rewards became advantages, one per member. Called in the loop's thread."""


@hookspec
def rllm_update_finished(report: UpdateReport) -> None:
    """A batch's update is done and its weights are published. Called in the loop's thread."""


@hookspec
def rllm_run_finished(run_dir: str, error: BaseException | None) -> None:
    """The run ended, well (``error`` is None) or not; its files are closed. Called in the loop's thread."""
