"""Runs rollouts: many at a time, each in its own session, with time limits, retries and grades.

task ──▶ session ──▶ flow ──▶ recorded steps ──▶ episode ──▶ evaluator ──▶ graded episode
"""

__all__ = ["NO_EVALUATOR", "RolloutRunner", "RunnerStats"]

import asyncio
import json
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllm.config import AgentConfig, RolloutConfig
from rllm.errors import ConfigError, EvaluatorError, RLLMError
from rllm.gateway import Gateway, SessionState
from rllm.plugins import PluginManager
from rllm.protocols import Evaluator
from rllm.reward import as_reward, grade
from rllm.rollouts.failures import RETRIED, TIMEOUT_MARK, attribute, rule_for
from rllm.rollouts.flow import Rollout
from rllm.trace import (
    Session,
    apply_returned,
    assemble,
    carry_context,
    instrument_openai,
    rollouts_running,
    use_session,
)
from rllm.types import Episode, Failure, Reward, SamplingParams, Step, Task, Trajectory

OnEpisode = Callable[[Episode], None]

NO_EVALUATOR = (
    "no evaluator: the task source has none of its own and the agent returned no reward. "
    "Give one with --evaluator file.py:function, or return an Episode with a reward"
)


@dataclass
class RunnerStats:
    """Counted over the runner's life."""

    failures: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    overridden: Counter[str] = field(default_factory=Counter)
    """Request fields that the run's sampling replaced."""
    regraded: int = 0
    """Rollouts that were graded twice,"""
    changed: int = 0
    """and those of them that got another grade the second time."""


class RolloutRunner:
    """Rolls one agent out on tasks through one gateway."""

    def __init__(
        self,
        gateway: Gateway,
        plugins: PluginManager,
        flow: Rollout,
        evaluator: Evaluator | None,
        config: RolloutConfig,
        model_name: str,
    ) -> None:
        self.gateway, self.plugins, self.flow, self.evaluator = gateway, plugins, flow, evaluator
        self.config, self.model_name = config, model_name
        self.stats = RunnerStats()

    async def run(
        self,
        tasks: Sequence[Task],
        samples: int,
        sampling: SamplingParams,
        *,
        is_training: bool,
        phase: str,
        on_episode: OnEpisode | None = None,
        regrade: int = 0,
    ) -> list[Episode]:
        """``samples`` rollouts of each task, ordered by task and sample whatever order they ended in.

        ``phase`` (the batch or validation they belong to) enters each call's seed, so that no two phases draw the
        same. ``on_episode`` is called as each ends. The first ``regrade`` rollouts are graded twice, to see whether the
        evaluator says the same (``stats``).
        """
        limit = asyncio.Semaphore(self.config.concurrency)

        async def one(task: Task, sample: int, index: int) -> Episode:
            async with limit:
                episode = await self._rollout(task, sample, sampling, is_training, phase, grades=1 + (index < regrade))
            self._count(episode)
            self.plugins.notify("rllm_episode_finished", episode=episode)
            if on_episode is not None:
                on_episode(episode)
            return episode

        instrument_openai()
        with rollouts_running(), carry_context():
            wanted = [(task, sample) for task in tasks for sample in range(samples)]
            jobs = [asyncio.create_task(one(task, sample, index)) for index, (task, sample) in enumerate(wanted)]
            try:
                return await asyncio.gather(*jobs)
            except BaseException:
                for job in jobs:
                    job.cancel()
                await asyncio.gather(*jobs, return_exceptions=True)
                raise

    def _count(self, episode: Episode) -> None:
        if episode.failure is not None:
            self.stats.failures[episode.failure.kind] += 1
        self.stats.retries += episode.attempts - 1
        for step in episode.steps:
            self.stats.overridden.update(step.overridden)

    async def _rollout(
        self, task: Task, sample: int, sampling: SamplingParams, is_training: bool, phase: str, *, grades: int
    ) -> Episode:
        started = time.monotonic()
        attempt = 0
        while True:
            session = self.gateway.open_session(
                task_id=task.id,
                sample=sample,
                attempt=attempt,
                phase=phase,
                is_training=is_training,
                sampling=sampling,
                max_calls=self.config.max_calls,
                max_tokens_total=self.config.max_tokens_total,
            )
            try:
                self.plugins.notify("rllm_session_started", session=session)
                returned, error = await self._call_flow(session, task, sampling, is_training)
            finally:
                # Also where the run is stopped: a closed session refuses what a thread still sends.
                steps = await asyncio.to_thread(self.gateway.close_session, session.id)
            state = self.gateway.session_state(session.id)
            failure = attribute(error, state, self.config.timeout_s)
            if failure is None or failure.kind not in RETRIED or attempt == self.config.retries:
                break
            attempt += 1
        episode = self._assemble(task, sample, session, steps, returned, failure)
        episode = await self._graded(episode, state, grades)
        return episode.model_copy(update={"attempts": attempt + 1, "duration_s": time.monotonic() - started})

    async def _call_flow(
        self, session: Session, task: Task, sampling: SamplingParams, is_training: bool
    ) -> tuple[Any, BaseException | None]:
        config = AgentConfig(
            base_url=session.base_url,
            api_key=session.api_key,
            model=self.model_name,
            session_id=session.id,
            task_id=task.id,
            sample=session.sample,
            is_training=is_training,
            max_tokens=sampling.max_tokens,
        )
        try:
            with use_session(session), self.plugins.rollout_context(session):
                running = asyncio.ensure_future(self.flow.run(task, config))
                done, _ = await asyncio.wait({running}, timeout=self.config.timeout_s)
                if not done:
                    running.cancel()
                    # An async agent gets to clean up, for a moment; one that swallows the cancellation is left behind.
                    await asyncio.wait({running}, timeout=1.0)
                    return None, TimeoutError(TIMEOUT_MARK)
                return running.result(), None
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            return None, error
        except Exception as error:
            return None, error

    def _assemble(
        self, task: Task, sample: int, session: Session, steps: list[Step], returned: Any, failure: Failure | None
    ) -> Episode:
        trajectories, side_steps = assemble(steps)
        output = returned
        reward: Reward | None = None
        if isinstance(returned, Trajectory | Episode):
            try:
                trajectories = apply_returned(trajectories, returned)
            except RLLMError as error:
                failure = failure or Failure(kind="agent_error", message=str(error))
            output = returned.output
            reward = returned.reward if isinstance(returned, Episode) else None
        if output is None and failure is None:
            output = _last_text(steps)
        return Episode(
            id=session.id,
            task=task,
            sample=sample,
            trajectories=trajectories,
            side_steps=side_steps,
            output=_plain(output),
            reward=reward,
            failure=failure,
        )

    async def _graded(self, episode: Episode, state: SessionState, grades: int) -> Episode:
        if episode.failure is not None:
            rule = rule_for(episode.failure, state, self.config.on_failure)
            if rule != "grade" or self.evaluator is None:
                return episode
        if episode.reward is not None or all(t.reward is not None for t in episode.trajectories):
            return episode
        if self.evaluator is None:
            raise ConfigError(NO_EVALUATOR)
        try:
            reward = await grade(self.evaluator, episode.task, episode, timeout_s=self.config.evaluator_timeout_s)
        except EvaluatorError as error:
            if episode.failure is not None:
                return episode  # a failed rollout that can't be graded gets failure_reward when groups are made
            failure = Failure(kind="evaluator_error", message=str(error), traceback=_cause_of(error))
            return episode.model_copy(update={"failure": failure})
        if grades > 1:
            await self._grade_again(self.evaluator, episode, reward)
        return episode.model_copy(update={"reward": None if reward is None else as_reward(reward)})

    async def _grade_again(self, evaluator: Evaluator, episode: Episode, reward: Reward | None) -> None:
        self.stats.regraded += 1
        try:
            again = await grade(evaluator, episode.task, episode, timeout_s=self.config.evaluator_timeout_s)
        except EvaluatorError:
            self.stats.changed += 1
            return
        self.stats.changed += (again and again.value) != (reward and reward.value)


def _cause_of(error: BaseException) -> str:
    return "" if error.__cause__ is None else "".join(traceback.format_exception(error.__cause__))


def _last_text(steps: Sequence[Step]) -> str:
    for step in reversed(steps):
        if step.status == "ok" and step.message is not None:
            return step.message.get("content") or ""
    return ""


def _plain(output: Any) -> Any:
    """The output as JSON data; what JSON can't hold is kept as its text, for the record is written to a file."""
    try:
        return json.loads(json.dumps(output))
    except (TypeError, ValueError):
        return str(output)
