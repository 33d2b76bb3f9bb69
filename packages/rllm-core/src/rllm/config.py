"""Every setting, typed, with its unit in its name and its default here and nowhere else.

What a plugin adds (the settings of a task, estimator, loss or backend) stands under the plugin item's name beside
these, and is composed by ``resolve_config``: ``rllm train chain_sum chain_sum.max_digits=2 grpo.std=false``.
"""

__all__ = [
    "AgentConfig",
    "EvalConfig",
    "OnFailure",
    "OptimizerConfig",
    "RolloutConfig",
    "SamplingConfig",
    "SftConfig",
    "TrainConfig",
    "ValidationConfig",
]

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator


class Settings(BaseModel):
    """A section of the configuration: unknown keys are errors, values are checked also on assignment."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class AgentConfig(Settings):
    """What a flow gets as its second argument, where it takes one: how to reach the policy by itself."""

    base_url: str
    """The session's OpenAI-compatible endpoint, ending in ``/v1``."""
    api_key: str = Field(repr=False)
    """The session's key; it opens no other session."""
    model: str
    session_id: str
    task_id: str
    sample: int
    """Which of the task's rollouts this is, from 0."""
    is_training: bool
    max_tokens: int
    """The run's limit for one completion, tokens."""


class SamplingConfig(Settings):
    """How completions are drawn. In training it replaces what a request asks for; in evaluation the request wins."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Of one completion; None takes the task's own limit, or 512."""
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, lt=1)


FailureRule = Literal["grade", "failure_reward", "drop"]


class OnFailure(Settings):
    """What becomes of a rollout that failed, by the kind of its failure.

    ``grade``: the evaluator grades what there is, else it gets ``failure_reward``; ``failure_reward``: it gets that
    at once; ``drop``: it leaves its group, and is counted.
    """

    agent_error: FailureRule = "grade"
    """The flow raised after a completed call."""
    context_length: FailureRule = "grade"
    call_limit: FailureRule = "grade"
    token_limit: FailureRule = "grade"
    no_model_call: FailureRule = "drop"
    timeout: FailureRule = "drop"
    infrastructure: FailureRule = "drop"
    """Retried ``rollout.retries`` times first, as ``timeout`` is."""


class RolloutConfig(Settings):
    """How agents are run."""

    concurrency: int = Field(default=64, ge=1)
    """Rollouts at a time."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Of one rollout; then it is cancelled, retried, and at last dropped."""
    retries: int = Field(default=1, ge=0)
    """After a failure of the infrastructure."""
    max_calls: int | None = Field(default=None, ge=1)
    """Model calls of one rollout; a further one is refused (403)."""
    max_tokens_total: int | None = Field(default=None, ge=1)
    """Sampled tokens of one rollout, over all its calls."""
    evaluator_timeout_s: float = Field(default=60.0, gt=0)
    failure_reward: float = 0.0
    """Of a rollout that failed by the policy's doing and could not be graded; never above its group's lowest grade."""
    on_failure: OnFailure = OnFailure()


class OptimizerConfig(Settings):
    """AdamW and its schedule."""

    lr: float = Field(default=7e-6, gt=0)
    """Adam's steps are as long for noise as for signal, so a high rate wears a model down where rewards say little:
    with rewards permuted, 20 steps at 2e-5 took SmolLM2's short sums from .12 to .03, at 7e-6 to .15."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.99, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    clip_norm: float | None = Field(default=1.0, gt=0)
    warmup_steps: int = Field(default=5, ge=0)
    """The learning rate rises linearly over the first steps."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the warm-up: down to 0 at the last step where it is not constant (needs ``steps``)."""


class ValidationConfig(Settings):
    """Evaluation on held-out tasks before, during and after training."""

    every_steps: int | None = Field(default=None, ge=1)
    """None validates before and after only; 0 tasks (``limit=0``) turns validation off."""
    samples: int = Field(default=1, ge=1)
    """Rollouts of each held-out task."""
    limit: int | None = Field(default=None, ge=0)
    """At most so many held-out tasks; None takes all."""
    temperature: float | None = Field(default=None, ge=0)
    """None takes the run's."""


class CheckpointConfig(Settings):
    """When the run's state is written to its folder, so that it can go on after it was stopped, and what is kept."""

    every_s: float | None = Field(default=120.0, ge=0)
    """At the end of a step, if the last one is so many seconds old: at most so much work, and a step, is lost."""
    every_steps: int | None = Field(default=None, ge=1)
    """After so many steps as well."""
    keep: int = Field(default=2, ge=1)
    """The newest so many; the second is for the case that the first is damaged."""
    keep_best: bool = False
    """And the one with the best validation (``validation.every_steps``)."""
    keep_every: int | None = Field(default=None, ge=1)
    """And those of every so many steps."""


class LoraConfig(Settings):
    """Low-rank adaptation (Hu et al., 2021) of every linear layer but the head."""

    rank: int = Field(default=0, ge=0)
    """0 trains all weights."""
    alpha: float | None = Field(default=None, gt=0)
    """None takes twice the rank."""


class TrainConfig(Settings):
    """A training run."""

    model: str = "smollm2-135m"
    """A name of ``rllm model list``, a folder, or a hub id."""
    tasks: str = ""
    """A name of ``rllm task list`` or a JSONL file."""
    agent: str | None = None
    """``file.py:function``, ``module:function`` or a registered name; None takes the one that suits the tasks."""
    evaluator: str | None = None
    """Likewise; None takes the tasks' own."""
    backend: str = "tinker"
    seed: int = 0
    steps: int | None = Field(default=None, ge=1)
    """Batches to train on; None trains until ``epochs`` or ``time_limit_s``."""
    epochs: float | None = Field(default=None, gt=0)
    """Passes over the training tasks; the default, where ``steps`` and ``time_limit_s`` are None too, is 1."""
    time_limit_s: float | None = Field(default=None, gt=0)
    """No new batch is started after so many seconds of training (validation aside)."""
    batch_tasks: int = Field(default=8, ge=1)
    """Tasks in a batch."""
    group_size: int = Field(default=8, ge=1)
    """Rollouts of each task."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps that a batch is split into, by whole groups."""
    estimator: str = "grpo"
    estimator_by_role: dict[str, str] = Field(default_factory=dict)
    """Role → estimator, where it is not the run's."""
    loss: str = "importance_sampling"
    loss_aggregation: Literal["token_mean", "sequence_mean", "constant", "sum"] = "constant"
    """How a minibatch's token losses are weighted: by 1/tokens, by 1/(rows × own tokens), by
    1/(rollouts asked for × sampling.max_tokens) (Dr. GRPO, Liu et al. 2025), or by 1."""
    ratio_cap: float | None = Field(default=2.0, gt=0)
    """Truncated importance correction between sampler and trainer; null leaves it out."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of KL(policy ‖ model before training), nats."""
    train_roles: list[str] | None = None
    """Roles whose trajectories are trained on; None trains all."""
    run_dir: str | None = None
    """Where the run's files go; None makes ``runs/<tasks>-<time>``."""
    sampling: SamplingConfig = SamplingConfig()
    rollout: RolloutConfig = RolloutConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    validation: ValidationConfig = ValidationConfig()
    lora: LoraConfig = LoraConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    loggers: list[str] = Field(default_factory=list)
    """Where metrics go beside the run's ``metrics.jsonl``: ``loggers=wandb,tensorboard``."""
    shuffle_rewards: bool = False
    """Permutes the rewards within each group: a control run, which must learn nothing."""
    plugins: dict[str, Any] = Field(default_factory=dict, exclude=True, repr=False)
    """Filled in by ``resolve_config``: item name → its typed settings."""

    @field_validator("loggers", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """``a,b`` as the command line has it."""
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


class SftOptimizerConfig(OptimizerConfig):
    """The same, with a rate that suits given answers."""

    lr: float = Field(default=2e-5, gt=0)


class SftConfig(Settings):
    """Supervised fine-tuning: the likelihood of given replies."""

    model: str = "smollm2-135m"
    """A name of ``rllm model list``, a folder, or a hub id."""
    data: str = ""
    """A file of conversations: JSON Lines or Parquet, ``{"messages": [...]}`` or ``{"prompt": ..., "answer": ...}``."""
    backend: str = "tinker"
    seed: int = 0
    steps: int | None = Field(default=None, ge=1)
    """Batches to train on; None trains for ``epochs``."""
    epochs: float = Field(default=1.0, gt=0)
    """Passes over the conversations."""
    batch_size: int = Field(default=8, ge=1)
    """Conversations in an optimizer step."""
    held_out: float = Field(default=0.1, ge=0, lt=1)
    """The share of the conversations that is not trained on; its loss is told before and after."""
    run_dir: str | None = None
    """Where the run's files go; None makes ``runs/sft-<data>-<time>``."""
    optimizer: SftOptimizerConfig = SftOptimizerConfig()
    lora: LoraConfig = LoraConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    plugins: dict[str, Any] = Field(default_factory=dict, exclude=True, repr=False)
    """The backend's settings; filled in by ``resolve_config``."""


class EvalConfig(Settings):
    """An evaluation."""

    model: str = "smollm2-135m"
    tasks: str = ""
    agent: str | None = None
    evaluator: str | None = None
    backend: str = "tinker"
    seed: int = 0
    split: Literal["held_out", "train"] = "held_out"
    samples: int = Field(default=1, ge=1)
    """Rollouts of each task."""
    limit: int | None = Field(default=None, ge=1)
    run_dir: str | None = None
    sampling: SamplingConfig = SamplingConfig()
    rollout: RolloutConfig = RolloutConfig()
    plugins: dict[str, Any] = Field(default_factory=dict, exclude=True, repr=False)
