"""The evaluation runner, its statistics, and what serves a policy to it."""

__all__ = ["EvalReport", "Summary", "evaluate", "run_eval", "summarise"]

from rllm.evals.runner import EvalReport, evaluate, run_eval
from rllm.evals.statistics import Summary, summarise
