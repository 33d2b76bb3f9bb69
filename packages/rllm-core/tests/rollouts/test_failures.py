"""Whose doing a failure is, and when it stops the run."""

import pytest

from rllm.config import OnFailure
from rllm.errors import EvaluatorError, RolloutError
from rllm.gateway import SessionState
from rllm.rollouts.failures import TIMEOUT_MARK, BugWatch, attribute, rule_for
from rllm.types import Episode, Failure


def state(**fields) -> SessionState:
    return SessionState(**({"calls": 1, "completed_calls": 1} | fields))


@pytest.mark.parametrize(
    ("error", "seen", "kind"),
    [
        (None, state(), None),
        (None, state(completed_calls=0), "no_model_call"),
        (None, state(completed_calls=0, upstream_error="dead"), "infrastructure"),
        (ValueError("x"), state(), "agent_error"),
        (ValueError("x"), state(limit_hit="call_limit"), "call_limit"),
        (ValueError("x"), state(limit_hit="token_limit"), "token_limit"),
        (ValueError("x"), state(context_length_hit=True), "context_length"),
        (ValueError("x"), state(upstream_error="dead"), "infrastructure"),
        (TimeoutError(TIMEOUT_MARK), state(), "timeout"),
        (TimeoutError("the agent's own"), state(), "agent_error"),
    ],
)
def test_a_failure_is_attributed_by_the_exception_and_what_the_gateway_saw(error, seen, kind):
    failure = attribute(error, seen, timeout_s=3)
    assert (failure and failure.kind) == kind


def test_a_limit_that_the_agent_handled_is_no_failure():
    assert attribute(None, state(limit_hit="call_limit", context_length_hit=True), timeout_s=3) is None


def test_without_a_completed_call_a_rollout_is_dropped_whatever_the_rule():
    failure = Failure(kind="agent_error", message="x")
    assert rule_for(failure, state(completed_calls=0), OnFailure()) == "drop"
    assert rule_for(failure, state(), OnFailure(agent_error="failure_reward")) == "failure_reward"


def episodes(*failures: Failure | None) -> list[Episode]:
    return [Episode(failure=f) for f in failures]


def failed(line: int, kind="agent_error", message="ValueError: x") -> Failure:
    return Failure(kind=kind, message=message, traceback=f'  File "a.py", line {line}, in solve\nValueError: x\n')


def test_one_failure_in_over_half_of_the_first_batch_is_a_bug():
    with pytest.raises(RolloutError, match=r"failed in the same way in 3 of the first 4 rollouts \(agent_error\)"):
        BugWatch().check(episodes(failed(1), failed(1), failed(1), None))


def test_half_of_them_or_different_ones_or_later_ones_are_not():
    BugWatch().check(episodes(failed(1), failed(1), None, None))
    BugWatch().check(episodes(failed(1), failed(2), failed(3), failed(4)))
    watch = BugWatch()
    watch.check(episodes(None))
    watch.check(episodes(failed(1), failed(1)))


def test_an_evaluators_failures_are_its_own_whatever_task_they_name():
    one = Failure(kind="evaluator_error", message="task 1: returned 'x'")
    two = Failure(kind="evaluator_error", message="task 2: returned 'y'")
    with pytest.raises(EvaluatorError, match="the evaluator failed in the same way in 2"):
        BugWatch().check(episodes(one, two))
