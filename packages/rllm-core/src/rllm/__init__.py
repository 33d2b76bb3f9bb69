"""rLLM: train AI agents with reinforcement learning, with the agent's code left as it is.

    your agent → traces → rewards → advantages → policy update

The public names below are imported when first used, so that ``import rllm`` is quick and brings in neither torch nor
transformers.
"""

__all__ = [
    "AgentConfig",
    "AgentTrainer",
    "BackendError",
    "CheckpointError",
    "Completion",
    "ConfigError",
    "ContextLengthError",
    "Episode",
    "EvalConfig",
    "EvaluatorError",
    "Group",
    "ModelError",
    "NothingToTrainError",
    "PluginError",
    "Prompt",
    "RLLMError",
    "Reward",
    "RolloutError",
    "Row",
    "RunFolderError",
    "SamplingParams",
    "SessionError",
    "Step",
    "Task",
    "TaskError",
    "TemplateError",
    "TraceStoreError",
    "TrainConfig",
    "Trajectory",
    "UnknownNameError",
    "as_role",
    "evaluator",
    "get_plugins",
    "hookimpl",
    "instrument_openai",
    "no_session",
    "rollout",
    "uninstrument_openai",
]

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rllm.config import AgentConfig, EvalConfig, TrainConfig
    from rllm.errors import (
        BackendError,
        CheckpointError,
        ConfigError,
        ContextLengthError,
        EvaluatorError,
        ModelError,
        NothingToTrainError,
        PluginError,
        RLLMError,
        RolloutError,
        RunFolderError,
        SessionError,
        TaskError,
        TemplateError,
        TraceStoreError,
        UnknownNameError,
    )
    from rllm.hookspecs import hookimpl
    from rllm.plugins import get_plugins
    from rllm.reward import evaluator
    from rllm.rollouts import rollout
    from rllm.trace import as_role, instrument_openai, no_session, uninstrument_openai
    from rllm.train import AgentTrainer
    from rllm.types import (
        Completion,
        Episode,
        Group,
        Prompt,
        Reward,
        Row,
        SamplingParams,
        Step,
        Task,
        Trajectory,
    )

_HOMES = {
    "rllm.config": ("AgentConfig", "EvalConfig", "TrainConfig"),
    "rllm.errors": (
        "CheckpointError",
        "BackendError",
        "ConfigError",
        "ContextLengthError",
        "EvaluatorError",
        "ModelError",
        "NothingToTrainError",
        "PluginError",
        "RLLMError",
        "RolloutError",
        "RunFolderError",
        "SessionError",
        "TaskError",
        "TemplateError",
        "TraceStoreError",
        "UnknownNameError",
    ),
    "rllm.hookspecs": ("hookimpl",),
    "rllm.plugins": ("get_plugins",),
    "rllm.reward": ("evaluator",),
    "rllm.rollouts": ("rollout",),
    "rllm.trace": ("as_role", "instrument_openai", "no_session", "uninstrument_openai"),
    "rllm.train": ("AgentTrainer",),
    "rllm.types": (
        "Completion",
        "Episode",
        "Group",
        "Prompt",
        "Reward",
        "Row",
        "SamplingParams",
        "Step",
        "Task",
        "Trajectory",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'rllm' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
