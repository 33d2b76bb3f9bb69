"""Why a rollout failed, decided once: by the policy's doing (it stays in its group) or the infrastructure's."""

__all__ = ["BugWatch", "attribute", "rule_for"]

import traceback
from collections import Counter
from collections.abc import Iterable

from rllm.config import FailureRule, OnFailure
from rllm.errors import EvaluatorError, PluginError, RolloutError
from rllm.gateway import SessionState
from rllm.types import Episode, Failure, FailureKind

RETRIED: frozenset[FailureKind] = frozenset({"timeout", "infrastructure"})
"""Kinds that say nothing about the policy; tried again before they are dropped."""


def attribute(error: BaseException | None, state: SessionState, timeout_s: float) -> Failure | None:
    """What failed, from the flow's exception and what the gateway saw of the session; None where nothing did."""
    text = "" if error is None else "".join(traceback.format_exception(error))
    message = "" if error is None else f"{type(error).__name__}: {error}"
    if isinstance(error, TimeoutError) and error.args == (TIMEOUT_MARK,):
        return Failure(kind="timeout", message=f"the agent did not end within rollout.timeout_s={timeout_s:g} seconds")
    if error is None:
        if state.completed_calls == 0:
            if state.upstream_error:
                return Failure(kind="infrastructure", message=state.upstream_error)
            return Failure(kind="no_model_call", message=NO_CALL)
        return None
    if state.upstream_error:
        return Failure(kind="infrastructure", message=state.upstream_error)
    if isinstance(error, PluginError):
        return Failure(kind="infrastructure", message=message, traceback=text)
    if state.limit_hit is not None:
        return Failure(kind=state.limit_hit, message=message, traceback=text)
    if state.context_length_hit:
        return Failure(kind="context_length", message=message, traceback=text)
    return Failure(kind="agent_error", message=message, traceback=text)


TIMEOUT_MARK = "rllm: the rollout's own time limit"
"""Tells our time limit from a TimeoutError of the agent's own."""

NO_CALL = (
    "no model call was recorded in the rollout's session. Inside a rollout the openai client is sent to the policy by "
    "itself; any other client must use config.base_url and config.api_key (write the agent as agent(task, config))"
)


def rule_for(failure: Failure, state: SessionState, rules: OnFailure) -> FailureRule:
    """What becomes of the rollout. Without a completed call there is nothing to train on, so it is dropped: left in
    its group it would move the others' baseline and give no token of its own."""
    if state.completed_calls == 0 or failure.kind == "evaluator_error":
        return "drop"
    return getattr(rules, failure.kind)


class BugWatch:
    """Stops a run whose first batch shows that the agent or the evaluator is broken."""

    def __init__(self) -> None:
        self._is_first = True

    def check(self, episodes: Iterable[Episode]) -> None:
        """Raise RolloutError or EvaluatorError where one failure took over half of the first batch of episodes."""
        if not self._is_first:
            return
        self._is_first = False
        episodes = list(episodes)
        failures = [e.failure for e in episodes if e.failure is not None]
        same = Counter((f.kind, _signature(f)) for f in failures)
        if not same:
            return
        (kind, _), count = same.most_common(1)[0]
        if count * 2 <= len(episodes):
            return
        failure = next(f for f in failures if (f.kind, _signature(f)) == same.most_common(1)[0][0])
        who = "the evaluator" if kind == "evaluator_error" else "the agent"
        advice = {
            "timeout": "Raise rollout.timeout_s if the agent needs longer; else look for what it waits for.",
            "no_model_call": "",
            "infrastructure": "The model was not to blame; mend what failed, or wait until it answers again.",
        }.get(kind, f"This is a bug in {who}, not the policy's doing: mend it and start again.")
        detail = f"\n\n{failure.traceback.rstrip()}" if failure.traceback else ""
        error = EvaluatorError if kind == "evaluator_error" else RolloutError
        raise error(
            f"{who} failed in the same way in {count} of the first {len(episodes)} rollouts ({kind}): "
            f"{failure.message.rstrip('.')}. {advice}".rstrip()
            + detail
        )


def _signature(failure: Failure) -> str:
    """What makes two failures of a kind the same: the line that raised, where there is one; messages name tasks."""
    lines = [line.strip() for line in failure.traceback.splitlines() if line.lstrip().startswith("File ")]
    return lines[-1] if lines else ""
