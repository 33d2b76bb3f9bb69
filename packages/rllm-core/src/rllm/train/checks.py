"""What is refused before anything starts: settings that contradict each other, or that the backend can't honour."""

__all__ = ["check_config", "check_tasks"]

import math
from collections.abc import Sequence

from rllm.advantage import smallest_group
from rllm.config import TrainConfig
from rllm.errors import ConfigError, TaskError
from rllm.plugins import PluginManager
from rllm.protocols import Capabilities, TaskSource
from rllm.types import Task


def check_config(config: TrainConfig, plugins: PluginManager) -> None:
    """Raise ConfigError for settings that can't be meant together; needs no model."""
    sampling = config.sampling
    for name, off in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
        value = getattr(sampling, name)
        if value != off:
            raise ConfigError(
                f"sampling.{name}={value} cuts the distribution that the trainer's logprobs are of, and would bias "
                f"every update. Train with sampling.{name}={off}; an evaluation may set it"
            )
    if sampling.temperature == 0:
        raise ConfigError(
            "sampling.temperature=0 makes every rollout of a task the same, so no group has a signal. "
            "Train with a temperature above 0, usually 1"
        )
    if not plugins.get("loss", config.loss).extra.get("uses_rewards", True):
        raise ConfigError(
            f"loss={config.loss} takes no notice of rewards, so nothing would be learnt from them. "
            "Use `rllm sft` for supervised fine-tuning, or another loss"
        )
    smallest = {
        name: smallest_group(plugins.get("estimator", name))
        for name in {config.estimator, *config.estimator_by_role.values()}
    }
    for name, least in smallest.items():
        if config.group_size < least:
            raise ConfigError(
                f"group_size={config.group_size}, but the estimator {name!r} compares at least {least} rollouts of a "
                "task. Raise group_size, or choose estimator=reinforce with reinforce.baseline=batch"
            )
    if config.minibatches > config.batch_tasks:
        raise ConfigError(
            f"minibatches={config.minibatches}, but a batch has only {config.batch_tasks} groups (batch_tasks) to "
            "split. Lower it, or raise batch_tasks"
        )
    if config.optimizer.schedule != "constant" and config.steps is None and config.time_limit_s is not None:
        raise ConfigError(
            f"optimizer.schedule={config.optimizer.schedule} needs to know the last step, and time_limit_s ends the "
            "run by the clock. Set steps too, or take optimizer.schedule=constant"
        )


def check_capabilities(config: TrainConfig, capabilities: Capabilities) -> None:
    """Raise ConfigError for a setting that this backend can't honour, by its name."""
    refusals = [
        (capabilities.losses is not None and config.loss not in capabilities.losses, "loss", config.loss),
        (config.lora.rank > 0 and not capabilities.lora, "lora.rank", config.lora.rank),
        (config.lora.rank == 0 and not capabilities.full_finetuning, "lora.rank", 0),
        (config.kl_coef > 0 and not capabilities.kl, "kl_coef", config.kl_coef),
        (config.ratio_cap is not None and not capabilities.ratio_cap, "ratio_cap", config.ratio_cap),
    ]
    for is_refused, name, value in refusals:
        if is_refused:
            raise ConfigError(
                f"the backend {config.backend!r} can't honour {name}={value!r}. Change it, or choose another backend"
            )

    if config.ratio_cap is None and not capabilities.exact:
        raise ConfigError(
            f"ratio_cap=null, but sampler and trainer of the backend {config.backend!r} differ in their logprobs as it "
            "runs here, which biases every update that is not corrected. Leave ratio_cap at 2, or choose a "
            "precision in which they agree (tinker.precision=fp32)"
        )


def check_tasks(source: TaskSource, train: Sequence[Task], held_out: Sequence[Task]) -> None:
    """Raise TaskError where there is nothing to train on, or a question stands on both sides."""
    if not train:
        raise TaskError(f"the task source {source.name!r} has no tasks to train on")
    shared = {t.prompt for t in train} & {t.prompt for t in held_out}
    shared.discard("")
    if shared:
        example = sorted(shared)[0]
        raise TaskError(
            f"the task source {source.name!r} has {len(shared)} held-out questions that are also trained on, for "
            f"example {example[:80]!r}. The validation would measure memory; split by question"
        )


def check_limits(config: TrainConfig, n_train: int) -> None:
    """Raise ConfigError where the run would do nothing."""
    if config.epochs is not None and math.ceil(config.epochs * n_train) < 1:
        raise ConfigError(f"epochs={config.epochs} of {n_train} tasks is not one task; raise it or set steps")
