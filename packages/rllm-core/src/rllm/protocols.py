"""What a plugin may be: every interface on one page, each with the feature that uses it."""

__all__ = [
    "AdamParams",
    "BackendRequest",
    "Capabilities",
    "CostEstimate",
    "Estimator",
    "Evaluator",
    "ExportKind",
    "Flow",
    "Logger",
    "LoggerRequest",
    "Loss",
    "LossInputs",
    "LossSpec",
    "ModelInfo",
    "Rehearsal",
    "Sampler",
    "StepResult",
    "TaskSource",
    "TrainBackend",
    "Workload",
]

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from rllm.types import Completion, Episode, Prompt, Reward, Row, SamplingParams, Task

if TYPE_CHECKING:
    from torch import Tensor

# --- what a user writes -----------------------------------------------------------------------------------------

Flow = Callable[..., Any]
"""An agent: ``flow(task)`` or ``flow(task, config)``, sync or async; returns None, a value, a Trajectory or an
Episode. See ``rllm.rollout``."""

GradeLike = Reward | bool | int | float | tuple[Any, ...] | None
"""What an evaluator may return: a Reward, a bool, a finite number, or ``(value, is_correct)``. None is no grade."""

Evaluator = Callable[[Task, Episode], GradeLike | Awaitable[GradeLike]]
"""Grades an episode; sync or async. See ``rllm.evaluator``."""


@runtime_checkable
class TaskSource(Protocol):
    """Where tasks come from. Train and held-out tasks never share a question."""

    @property
    def name(self) -> str: ...

    @property
    def evaluator(self) -> Evaluator | None:
        """The source's own grader; None where the user must give one."""
        ...

    @property
    def agent(self) -> str:
        """The built-in agent that suits the source, used where the user names none."""
        ...

    @property
    def max_tokens(self) -> int | None:
        """What a completion needs at most, the run's default; None leaves the general default."""
        ...

    def train(self) -> Sequence[Task]:
        """The tasks to train on."""
        ...

    def held_out(self) -> Sequence[Task]:
        """The tasks to validate on; empty where the source has none."""
        ...


# --- from rewards to advantages to losses -----------------------------------------------------------------------

Estimator = Callable[..., list[NDArray[np.float64]]]
"""``estimator(rewards)`` or ``estimator(rewards, settings)``: from the finite rewards of every group of one role,
``list of float64[G]``, to advantages of the same shapes."""


@dataclass(frozen=True)
class LossInputs:
    """What a loss sees: flat tensors over the N target tokens of some rows, float32 or float64, on one device."""

    sampler_logprobs: "Tensor"
    """Nats, of the sampler, when it drew the token."""
    old_logprobs: "Tensor"
    """Nats, of the trainer before the batch's first update (the detached current ones where that is this one)."""
    advantages: "Tensor"
    ref_logprobs: "Tensor | None" = None
    """Nats, of the reference policy; None where the run has no KL term."""
    row_index: "Tensor | None" = None
    """int64, which row each token is of, for sequence-level losses."""


Loss = Callable[..., "tuple[Tensor, dict[str, Tensor]]"]
"""``loss(logprobs, inputs)`` or ``loss(logprobs, inputs, settings)``: from the current logprobs (nats, with grad)
to the loss of each token and named per-token measurements (no grad), all of shape [N]. The backend sums
mask × loss and averages the measurements over the tokens."""


@dataclass(frozen=True)
class LossSpec:
    """Which loss an update uses, resolved: the callable, its settings, and what wraps it."""

    name: str
    function: Loss
    settings: BaseModel | None = None
    ratio_cap: float | None = None
    """Truncated importance sampling: each token's loss and KL term are weighted by min(old policy / sampler, cap),
    detached, for both are expectations over what the sampler drew; None leaves the correction out.
    https://fengyao.notion.site/off-policy-rl"""
    kl_coef: float = 0.0
    """Weight of the k3 estimate of KL(policy ‖ reference), nats, added to each token's loss."""


@dataclass(frozen=True)
class AdamParams:
    """One optimizer step of AdamW (Loshchilov & Hutter, 2019)."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float | None = 1.0
    """The gradient's global L2 norm is clipped to this; None leaves it."""


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did."""

    loss: float
    """Σ mask × loss over the minibatch."""
    grad_norm: float
    """Before clipping."""
    metrics: Mapping[str, float]
    """Token means over the minibatch: the loss's measurements, ``entropy`` (nats), and so on."""
    logprobs: tuple[NDArray[np.float32], ...]
    """Per row float32[T], the trainer's before this step, nats, 0 where mask is 0."""


# --- backends ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelInfo:
    """What the rest of the system needs to know of a loaded model."""

    name: str
    tokenizer: Any
    """A transformers tokenizer, with the chat template that is used."""
    context_tokens: int
    stop_ids: tuple[int, ...]
    """Sampling ends at each of these."""
    vocab_size: int
    n_parameters: int = 0


@dataclass(frozen=True)
class Capabilities:
    """What a backend honours; a setting outside it is refused before anything starts."""

    losses: frozenset[str] | None
    """Names of losses; None where any registered loss runs."""
    lora: bool
    full_finetuning: bool
    penalties: bool
    """Presence and frequency penalties (evaluation only)."""
    kl: bool
    ratio_cap: bool
    exact: bool = False
    """Sampler and trainer give a token the same logprob, up to float32's rounding; if not, ``ratio_cap`` is needed."""


@dataclass(frozen=True)
class BackendRequest:
    """What a backend is built from. ``settings`` is the backend's own section of the configuration."""

    model_name: str
    model_path: str
    """A folder, or a hub id."""
    seed: int
    lora_rank: int
    """0 trains all weights."""
    lora_alpha: float
    settings: BaseModel | None
    trains: bool = True
    """False where only sampling is wanted (evaluation): no optimizer state is kept."""


@dataclass(frozen=True)
class Workload:
    """What a run asks of its backend, at most."""

    rows: int
    """Rollouts (or conversations) of a step."""
    prompts: int
    """Different prompts among them: what a group shares is computed once."""
    prompt_tokens: int
    """Of one row, on average."""
    completion_tokens: int
    """Of one row: sampled and trained on."""
    updates: int = 1
    """Optimizer steps that the rows are split into."""
    samples: bool = True
    """False where the completions are given (supervised fine-tuning)."""
    validation_rows: int = 0
    """Rollouts of one validation."""


@dataclass(frozen=True)
class CostEstimate:
    """What a step of a workload takes, at most."""

    n_parameters: int
    n_trained: int
    """Of them, or of an adapter, what the optimizer moves."""
    memory: Mapping[str, int]
    """Bytes by what holds them."""
    peak_bytes: int
    """Less than their sum where two are never held at once."""
    machine_bytes: int
    """What the device has."""
    seconds: Mapping[str, float]
    """By the part of the run: ``rollouts`` and ``updates`` of a step, a ``validation``."""
    basis: str
    """What the seconds come from, and what they leave out."""


class Rehearsal(Protocol):
    """A backend without its weights: what it would hold, be able to do, and take. What ``--dry-run`` asks.

    A backend has one where it is registered with ``rehearse=function``; ``function(request)`` makes it, from the same
    request as the backend. It raises BackendError where it can't tell of this model; the run may still work.
    """

    @property
    def model(self) -> ModelInfo: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def estimate(self, workload: Workload) -> CostEstimate:
        """May take seconds: it measures."""
        ...


@runtime_checkable
class Sampler(Protocol):
    """A policy as something to draw from."""

    @property
    def version(self) -> int:
        """Of the newest weights it serves, from 0."""
        ...

    async def sample(self, prompt: Prompt, params: SamplingParams, n: int = 1) -> list[Completion]:
        """Draw ``n`` completions. Cancelling the call frees its slots.

        Raises ContextLengthError where the prompt leaves no room, BackendError where the engine has failed.
        """
        ...

    async def score(self, prompt: Prompt) -> NDArray[np.float32]:
        """The logprob of each prompt token under the same policy, float32[T], nats at temperature 1; NaN at 0."""
        ...


ExportKind = Literal["model", "adapter"]


@runtime_checkable
class TrainBackend(Protocol):
    """A policy that can be drawn from and trained. The loop never asks which backend it has."""

    @property
    def model(self) -> ModelInfo: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def sampler(self) -> Sampler:
        """One object for the whole run; ``publish`` moves its version on."""
        ...

    async def train_step(self, rows: Sequence[Row], loss: LossSpec, optim: AdamParams) -> StepResult:
        """One optimizer step on the sum over ``rows``; the gradient does not depend on how they are split up."""
        ...

    async def logprobs(self, rows: Sequence[Row], of: str = "current") -> list[NDArray[np.float32]]:
        """Of the "current" or the "reference" policy (the weights before training); no gradient; 0 where mask is 0."""
        ...

    async def publish(self) -> int:
        """Make the trained weights the sampler's. Returns the new version. No sample may be in flight."""
        ...

    async def save(self, folder: Path) -> None:
        """Write weights, optimizer and version into an empty folder. Raises OSError where the disk does not take it."""
        ...

    async def restore(self, folder: Path, *, with_optimizer: bool = True) -> None:
        """Be as when ``save`` wrote that folder; no sample may be in flight.

        Raises BackendError where it is another model's, or has no optimizer state and should have one.
        """
        ...

    async def export(self, path: Path, what: ExportKind = "model") -> None:
        """Write the policy as a Hugging Face folder that ``from_pretrained`` loads, LoRA merged into the weights;
        ``adapter``, of a run with LoRA only, as a PEFT folder. Raises OSError where the disk does not take it."""
        ...

    async def close(self) -> None:
        """Free everything; samples in flight are aborted."""
        ...


@dataclass(frozen=True)
class Registered:
    """One registered item: what it is called, what it is, its typed settings, and which plugin brought it."""

    name: str
    value: Any
    plugin: str
    summary: str = ""
    settings_source: type[BaseModel] | Callable[[], type[BaseModel]] | None = None
    """The class of the settings, or what makes it when it is asked for."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> type[BaseModel] | None:
        """The class of its settings; None where it has none."""
        if self.settings_source is None or isinstance(self.settings_source, type):
            return self.settings_source
        return self.settings_source()


# --- where metrics go -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoggerRequest:
    """The run that a logger is opened for."""

    run_id: str
    """The same when the run is resumed."""
    name: str
    """Of its folder."""
    run_dir: Path
    settings: Mapping[str, Any]
    """The configuration by dotted names."""
    steps: int
    """Batches that are logged already: above 0 where the run is resumed."""


class Logger(Protocol):
    """Keeps or sends metrics. Called in the loop's thread; what it raises is said, and the run goes on without it."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """The metrics of a step or of a validation; ``step`` never falls, and may come twice."""
        ...

    def close(self, error: BaseException | None) -> None:
        """The run has ended; ``error`` is None where it ended well."""
        ...
