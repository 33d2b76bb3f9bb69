"""The command that an outcome suggests is the whole one: it resolves to the same tasks, agent and settings."""

import shlex

import pytest

from rllm.cli.eval import command as eval_command
from rllm.cli.following import command_on
from rllm.cli.options import as_options
from rllm.config import EvalConfig, TrainConfig
from rllm.configure import parse_assignments, resolve_config
from rllm.plugins import PluginManager


@pytest.mark.parametrize(
    "assignments",
    [
        ["tasks=chain_sum"],
        ["tasks=chain_sum", "chain_sum.max_digits=2", "optimizer.lr=1", "grpo.std=false", "steps=3"],
        ["tasks=my tasks.jsonl", "file.held_out=5", "agent=a.py:f", "evaluator=exact", "sampling.max_tokens=9"],
        ["tasks=a.py:make", "python.held_out=0.5", "rollout.timeout_s=1.5", "rollout.on_failure.timeout=grade"],
        ["tasks=letters", "tinker.precision=fp32", "tinker.threads=1", "sampling.temperature=0.7"],
    ],
)
def test_an_evaluation_of_what_was_trained(assignments):
    plugins = PluginManager(load_installed=False)
    trained = resolve_config(TrainConfig, [parse_assignments(assignments)], plugins)
    words = shlex.split(command_on("eval", trained, model="runs/my run/model"))
    assert words[:2] == ["rllm", "eval"]
    parameters = eval_command.make_context("eval", words[2:]).params
    for other in ("as_json", "config"):
        parameters.pop(other)
    layer = as_options(parameters.pop("tasks"), parameters.pop("settings"), parameters)
    evaluated = resolve_config(EvalConfig, [layer], plugins)
    assert evaluated.model == "runs/my run/model"
    for name in ("tasks", "agent", "evaluator", "backend", "sampling", "rollout"):
        assert getattr(evaluated, name) == getattr(trained, name), name
    assert evaluated.plugins == {name: section for name, section in trained.plugins.items() if name not in ("grpo",)}
