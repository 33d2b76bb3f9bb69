"""``@evaluator``, what it may return, and grading with limits."""

__all__ = ["NamedEvaluator", "as_evaluator", "as_reward", "evaluator", "grade"]

from rllm.reward.evaluator import NamedEvaluator, as_evaluator, evaluator
from rllm.reward.grading import grade
from rllm.reward.normalise import as_reward
