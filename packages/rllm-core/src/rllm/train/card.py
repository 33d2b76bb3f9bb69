"""The card of an exported model, its README.md: what it came from, how it was trained, and what that brought."""

__all__ = ["model_card", "sft_card"]

from pathlib import Path

import yaml

from rllm.config import SftConfig, TrainConfig
from rllm.configure import describe_settings
from rllm.evals.runs import flat_settings
from rllm.evals.statistics import Summary
from rllm.models import find_model
from rllm.protocols import ExportKind

RLLM = "[rLLM](https://github.com/rllm-org/rllm)"

OWN = ("run_dir", "loggers", "model", "tasks", "data")
"""Settings that say nothing of the model, or are said in a sentence."""


def model_card(
    config: TrainConfig, tasks: str, what: ExportKind, *, steps: int, before: Summary | None, after: Summary | None
) -> str:
    """The card of a model that was trained with reinforcement learning."""
    how = (
        f"trained with reinforcement learning by {RLLM}: {_count(steps, 'step')} of {config.batch_tasks} tasks × "
        f"{config.group_size} rollouts, estimator `{config.estimator}`, loss `{config.loss}`."
    )
    rows = [
        f"| {when} | {found.reward:.3f} ± {found.reward_se:.3f} | {found.accuracy:.3f} ± {found.accuracy_se:.3f} |"
        for when, found in (("before", before), ("after", after))
        if found is not None
    ]
    outcome: list[str] = []
    if rows:
        n_tasks, n_samples = next((s.n_tasks, s.n_samples) for s in (after, before) if s is not None)
        outcome.append(
            f"On {n_tasks} held-out tasks, {n_samples} rollouts in all (± one standard error, clustered by task):"
        )
        outcome.append("\n".join(["| | reward | accuracy |", "|---|---|---|", *rows]))
    return _card(config, Path(tasks).name, what, ["reinforcement-learning", config.estimator], how, outcome)


def sft_card(config: SftConfig, what: ExportKind, *, steps: int, before: float | None, after: float | None) -> str:
    """The card of a model that was trained on given replies."""
    how = f"fine-tuned on given replies by {RLLM}: {_count(steps, 'step')} of {config.batch_size} conversations."
    rows = [f"| {when} | {loss:.4f} |" for when, loss in (("before", before), ("after", after)) if loss is not None]
    outcome = ["\n".join(["| | loss on held-out conversations, nats a token |", "|---|---|", *rows])] if rows else []
    return _card(config, Path(config.data).name, what, ["sft"], how, outcome)


def _card(
    config: TrainConfig | SftConfig, trained_on: str, what: ExportKind, tags: list[str], how: str, outcome: list[str]
) -> str:
    """Markdown with the hub's metadata in front. A folder of this machine is told by its last two names alone."""
    source = find_model(config.model)
    model = "/".join(Path(source.path).parts[-2:]) if source.kind == "folder" else source.name
    about = {
        "library_name": "transformers" if what == "model" else "peft",
        "pipeline_tag": "text-generation",
        "tags": ["rllm", *tags],
        **({"base_model": source.path} if source.kind == "hub" else {}),
    }
    lines = [
        f"---\n{yaml.safe_dump(about, sort_keys=False)}---",
        f"# {model}, trained on {trained_on}",
        f"{'The model' if what == 'model' else 'A LoRA adapter for the model'} `{model}`, {how}",
        *outcome,
    ]
    settings = {k: v for k, v in _chosen_settings(config).items() if k not in OWN and not _is_a_place(v)}
    if settings:
        lines.append("Settings that are not the defaults:")
        lines.append("\n".join(["```", *(f"{name}={value}" for name, value in sorted(settings.items())), "```"]))
    return "\n\n".join(lines) + "\n"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _chosen_settings(config: TrainConfig | SftConfig) -> dict[str, object]:
    """By dotted name, those that are not the defaults."""
    sections = {name: type(section)().model_dump(mode="json") for name, section in config.plugins.items()}
    defaults = dict(flat_settings(type(config)().model_dump(mode="json") | sections))
    return {k: v for k, v in flat_settings(describe_settings(config)) if k not in defaults or v != defaults[k]}


def _is_a_place(value: object) -> bool:
    return isinstance(value, str) and ("/" in value or "\\" in value)
