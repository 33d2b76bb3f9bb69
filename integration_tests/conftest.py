"""What the integration tests share: a folder of their own, and a small run."""

from collections.abc import Callable
from typing import Any

import pytest

import rllm

SMALL: dict[str, Any] = {
    "model": "rllm-tiny",
    "steps": 2,
    "batch_tasks": 3,
    "group_size": 4,
    "validation.limit": 6,
    "sampling.max_tokens": 12,
    "optimizer.lr": 1e-3,
    "run_dir": "run",
}
"""Settings of a run that takes seconds."""


@pytest.fixture
def small() -> dict[str, Any]:
    return dict(SMALL)


@pytest.fixture
def run(tmp_path, monkeypatch) -> Callable[..., Any]:
    """``run(agent=…, evaluator=…, tasks=…, **settings)``: one small training run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def start(agent: Any = None, evaluator: Any = None, tasks: Any = "chain_sum", **settings: Any) -> Any:
        merged = SMALL | {name.replace("__", "."): value for name, value in settings.items()}
        return rllm.AgentTrainer(agent=agent, evaluator=evaluator, tasks=tasks, settings=merged).train()

    return start
