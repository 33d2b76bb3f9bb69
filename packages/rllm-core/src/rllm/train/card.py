"""The card of an exported model, its README.md: what it came from, how it was trained, and what that brought."""

__all__ = ["model_card"]

from pathlib import Path

import yaml

from rllm.config import TrainConfig
from rllm.configure import describe_settings
from rllm.evals.runs import flat_settings
from rllm.evals.statistics import Summary
from rllm.models import find_model
from rllm.protocols import ExportKind

OWN = ("run_dir", "loggers", "model", "tasks")
"""Settings that say nothing of the model, or are said in a sentence."""


def model_card(
    config: TrainConfig, tasks: str, what: ExportKind, *, steps: int, before: Summary | None, after: Summary | None
) -> str:
    """Markdown with the hub's metadata in front. A folder of this machine is told by its last two names alone."""
    source = find_model(config.model)
    model = "/".join(Path(source.path).parts[-2:]) if source.kind == "folder" else source.name
    about = {
        "library_name": "transformers" if what == "model" else "peft",
        "pipeline_tag": "text-generation",
        "tags": ["reinforcement-learning", "rllm", config.estimator],
        **({"base_model": source.path} if source.kind == "hub" else {}),
    }
    lines = [
        f"---\n{yaml.safe_dump(about, sort_keys=False)}---",
        f"# {model}, trained on {Path(tasks).name}",
        f"{'The model' if what == 'model' else 'A LoRA adapter for the model'} `{model}`, trained with reinforcement "
        "learning by [rLLM](https://github.com/rllm-org/rllm): "
        f"{steps} step{'' if steps == 1 else 's'} of {config.batch_tasks} tasks × {config.group_size} rollouts, "
        f"estimator `{config.estimator}`, loss `{config.loss}`.",
    ]
    rows = [
        f"| {when} | {found.reward:.3f} ± {found.reward_se:.3f} | {found.accuracy:.3f} ± {found.accuracy_se:.3f} |"
        for when, found in (("before", before), ("after", after))
        if found is not None
    ]
    if rows:
        n_tasks, n_samples = next((s.n_tasks, s.n_samples) for s in (after, before) if s is not None)
        lines.append(
            f"On {n_tasks} held-out tasks, {n_samples} rollouts in all (± one standard error, clustered by task):"
        )
        lines.append("\n".join(["| | reward | accuracy |", "|---|---|---|", *rows]))
    settings = {k: v for k, v in _chosen_settings(config).items() if k not in OWN and not _is_a_place(v)}
    if settings:
        lines.append("Settings that are not the defaults:")
        lines.append("\n".join(["```", *(f"{name}={value}" for name, value in sorted(settings.items())), "```"]))
    return "\n\n".join(lines) + "\n"


def _chosen_settings(config: TrainConfig) -> dict[str, object]:
    """By dotted name, those that are not the defaults."""
    sections = {name: type(section)().model_dump(mode="json") for name, section in config.plugins.items()}
    defaults = dict(flat_settings(TrainConfig().model_dump(mode="json") | sections))
    return {k: v for k, v in flat_settings(describe_settings(config)) if k not in defaults or v != defaults[k]}


def _is_a_place(value: object) -> bool:
    return isinstance(value, str) and ("/" in value or "\\" in value)
