"""``@rollout`` and the running of rollouts."""

__all__ = ["NO_EVALUATOR", "BugWatch", "Rollout", "RolloutRunner", "RunnerStats", "as_flow", "rollout"]

from rllm.rollouts.failures import BugWatch
from rllm.rollouts.flow import Rollout, as_flow, rollout
from rllm.rollouts.runner import NO_EVALUATOR, RolloutRunner, RunnerStats
