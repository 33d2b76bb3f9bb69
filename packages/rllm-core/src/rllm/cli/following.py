"""The commands that an outcome suggests next, whole: with the agent, the tasks and the settings of what just ended."""

__all__ = ["command_on"]

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rllm.config import EvalConfig, TrainConfig

SHARED = ("agent", "evaluator", "backend", "sampling", "rollout")
"""The settings that an evaluation and a training run have in common."""


def command_on(verb: str, config: "TrainConfig | EvalConfig", *, model: str) -> str:
    """``rllm VERB`` on the same tasks, with the same agent and the settings that both know and are not the defaults."""
    from rllm.configure import describe_settings, section_name, write_value
    from rllm.evals.runs import flat_settings

    words = ["rllm", verb, config.tasks]
    named, backend = section_name(config.tasks), config.backend
    defaults = dict(flat_settings(type(config)().model_dump(mode="json")))
    for name in (named, backend):
        section = config.plugins.get(name)
        if section is not None:
            defaults |= {f"{name}.{key}": value for key, value in type(section)().model_dump(mode="json").items()}
    for name, value in flat_settings(describe_settings(config)):
        if name.partition(".")[0] not in (*SHARED, named, backend) or value == defaults.get(name):
            continue
        if name in ("agent", "evaluator", "backend"):
            words += [f"--{name}", str(value)]
        else:
            words.append(f"{name}={write_value(value)}")
    return shlex.join([*words, "--model", model])
