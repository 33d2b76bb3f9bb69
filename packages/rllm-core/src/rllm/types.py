"""What flows: task → step → trajectory → episode → group → row, and what a sampler takes and gives.

Records that meet a file or a wire are frozen pydantic models with an exact JSON round trip; token arrays inside the
process are frozen dataclasses of numpy arrays. Axes: ``T`` tokens, ``G`` rollouts of a group.
"""

__all__ = [
    "SCHEMA_VERSION",
    "Completion",
    "Episode",
    "Failure",
    "FailureKind",
    "Group",
    "Prompt",
    "Reward",
    "Row",
    "RowMeta",
    "SamplingParams",
    "Step",
    "Task",
    "Trajectory",
]

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

SCHEMA_VERSION = 1
"""Of the records below as they stand in files; a reader refuses a newer one."""


class Record(BaseModel):
    """A frozen record; an unknown field is an error, NaN and infinity survive JSON as strings."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", allow_inf_nan=True)


class Task(Record):
    """One problem."""

    id: str
    """Unique within its source; a group is keyed by it."""
    prompt: str = ""
    """The question as a user would ask it."""
    answer: Any = None
    """The reference answer, for the evaluator; never shown to the agent by the built-in agents."""
    data: dict[str, Any] = Field(default_factory=dict)
    """Whatever else the source gives; JSON values."""
    source: str = ""
    """The name of the task source."""


class Reward(Record):
    """What an evaluator says of an episode."""

    value: float
    is_correct: bool | None = None
    """For accuracy; where it is None, ``value >= 1`` counts as correct."""
    signals: dict[str, float] = Field(default_factory=dict)
    """Parts and side measurements, logged under their names."""
    comment: str = ""
    by_role: dict[str, float] = Field(default_factory=dict)
    """Role → reward; a role that is not named gets ``value``."""
    by_step: dict[str, float] = Field(default_factory=dict)
    """Call id → reward; for estimators that credit steps."""

    @property
    def correct(self) -> bool:
        """``is_correct`` where the evaluator said it, else whether the value reaches 1."""
        return self.value >= 1.0 if self.is_correct is None else self.is_correct

    def for_role(self, role: str) -> float:
        """The reward of the trajectories of ``role``."""
        return self.by_role.get(role, self.value)


class SamplingParams(Record):
    """How a completion is drawn. Training takes only draws from the full softmax (at any temperature above 0)."""

    max_tokens: int = Field(default=512, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0 is off."""
    min_p: float = Field(default=0.0, ge=0, lt=1)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    stop: tuple[str, ...] = ()
    """Sampling ends when the decoded completion contains one of these; its ids stay in the completion."""
    seed: int | None = None
    """The same prompt, parameters and seed draw the same completion; None draws from fresh entropy."""
    top_logprobs: int = Field(default=0, ge=0, le=20)
    """How many alternatives to report at each position."""

    @property
    def is_full_softmax(self) -> bool:
        """Whether tokens are drawn from softmax(logits / temperature), nothing cut off and nothing added."""
        return (
            self.temperature > 0
            and self.top_p == 1
            and self.top_k == 0
            and self.min_p == 0
            and self.presence_penalty == 0
            and self.frequency_penalty == 0
        )


@dataclass(frozen=True)
class Prompt:
    """What a sampler continues: token ids, int32[T]."""

    ids: NDArray[np.int32]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", np.asarray(self.ids, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Completion:
    """What a sampler drew. ``ids``, ``logprobs`` (nats) and ``versions`` are of equal length T."""

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    """Of the distribution that was sampled from, see ``distribution``."""
    versions: NDArray[np.int32]
    """The policy version that drew each token."""
    finish_reason: Literal["stop", "length", "aborted"]
    """``stop``: a stop id or stop string (its ids are included); ``aborted``: cut off by shutdown or cancellation."""
    distribution: Literal["full", "modified"] = "full"
    """``full``: softmax(logits / temperature); ``modified``: truncated, penalised or greedy, not for training."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Per position, the (id, logprob) alternatives asked for, best first; empty if none were."""

    def __post_init__(self) -> None:
        got = (len(self.ids), len(self.logprobs), len(self.versions))
        if len(set(got)) != 1:
            raise ValueError(f"a completion's ids, logprobs and versions differ in length: {got}")


StepStatus = Literal["ok", "error", "cancelled", "cut"]


class Step(Record):
    """One LLM call of a session, as the gateway saw it (with ``n > 1``, one step per choice).

    A step stores what it adds: its prompt is the whole stream of ``parent`` (that step's prompt and completion ids)
    followed by ``added_ids``. So a session grows linearly with its turns, and the token tree is exact.
    """

    call_id: str
    choice: int = 0
    session_id: str
    index: int
    """The order in which calls started within the session, from 0."""
    parent: str | None = None
    """The ``key`` of the step whose stream this one continues; None where the prompt was rendered anew."""
    role: str = "main"
    """The agent that made the call."""
    span_id: str | None = None
    """The span (one agent's run) that the call belongs to; None outside every span."""
    route: str = "policy"
    """``policy``, or the name of the frozen upstream that answered."""
    model: str = ""
    """As the request named it."""
    dialect: str = "chat"
    added_messages: tuple[dict[str, Any], ...] = ()
    """The request's messages beyond those of the parent's conversation (all of them without a parent)."""
    tools: tuple[dict[str, Any], ...] = ()
    added_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Nats, of the distribution sampled from; of the same length as ``completion_ids``."""
    versions: tuple[int, ...] = ()
    message: dict[str, Any] | None = None
    """The reply as the agent got it."""
    finish_reason: str | None = None
    status: StepStatus = "ok"
    error: str | None = None
    sampling: SamplingParams = Field(default_factory=SamplingParams)
    overridden: tuple[str, ...] = ()
    """Request fields that the run's sampling replaced."""
    break_reason: str | None = None
    """Why the prompt was rendered anew although the session had calls of this role: ``edited``, ``template``, …"""
    untrainable: str | None = None
    """Why these tokens may not be trained on; None where they may."""
    prompt_tokens: int = 0
    """Of the whole prompt, the parent's stream included."""
    started_at: float = 0.0
    """Unix time, seconds."""
    duration_s: float = 0.0

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        got = (len(self.completion_ids), len(self.logprobs), len(self.versions))
        if len(set(got)) != 1 and self.untrainable is None:
            raise ValueError(f"step {self.key}: completion_ids, logprobs and versions differ in length: {got}")
        return self

    @property
    def key(self) -> str:
        """``call_id`` for the first choice, ``call_id/k`` for the others."""
        return self.call_id if self.choice == 0 else f"{self.call_id}/{self.choice}"

    @property
    def is_trainable(self) -> bool:
        """Whether its completion may become a target."""
        return self.untrainable is None


class Trajectory(Record):
    """One agent's run within an episode. A flow may return one to name its role, output and reward."""

    role: str = "main"
    span_id: str | None = None
    steps: tuple[Step, ...] = ()
    """In the order of their calls. In a returned trajectory they may be left out: the recorded ones are filled in."""
    reward: float | None = None
    output: Any = None


FailureKind = Literal[
    "agent_error",
    "context_length",
    "call_limit",
    "token_limit",
    "no_model_call",
    "timeout",
    "infrastructure",
    "evaluator_error",
]


class Failure(Record):
    """Why a rollout did not end well; attributed once, where it was caught."""

    kind: FailureKind
    message: str
    traceback: str = ""


class Episode(Record):
    """One rollout with its trace: what an evaluator grades."""

    schema_version: int = SCHEMA_VERSION
    id: str = ""
    task: Task = Field(default_factory=lambda: Task(id=""))
    sample: int = 0
    """Which of the task's rollouts this is, from 0."""
    trajectories: tuple[Trajectory, ...] = ()
    side_steps: tuple[Step, ...] = ()
    """Calls outside every trajectory: frozen upstreams, side calls."""
    output: Any = None
    """What the flow returned; the last reply's text where it returned None."""
    reward: Reward | None = None
    failure: Failure | None = None
    attempts: int = 1
    """How often the rollout was started (infrastructure failures are retried)."""
    duration_s: float = 0.0

    @property
    def steps(self) -> tuple[Step, ...]:
        """All recorded calls, in the order in which they started."""
        own = [s for t in self.trajectories for s in t.steps]
        return tuple(sorted([*own, *self.side_steps], key=lambda s: (s.index, s.choice)))


@dataclass(frozen=True)
class Group:
    """The rollouts of one task seen by one role; the unit in which rewards become advantages."""

    task_id: str
    role: str
    members: tuple[tuple[Trajectory, ...], ...]
    """Per rollout, the trajectories of the role."""
    rewards_G: NDArray[np.float64]
    """Per rollout, the mean reward of its trajectories: each rollout counts once."""
    wanted: int
    """The group size asked for; ``len(members)`` is smaller where rollouts were dropped."""
    samples: tuple[int, ...] = ()
    """Per member, the rollout's sample number."""

    def __len__(self) -> int:
        return len(self.members)


@dataclass(frozen=True)
class RowMeta:
    """Where a row comes from, for ordering, metrics and messages."""

    task_id: str = ""
    sample: int = 0
    role: str = "main"
    call_ids: tuple[str, ...] = ()


def _no_meta() -> RowMeta:
    return RowMeta()


@dataclass(frozen=True)
class Row:
    """One training sequence, unshifted: at index t every array describes ``tokens[t]`` as a target.

    ``mask`` is the weight of each target in the loss, which is Σ mask × loss: 1 as rows are built, and what
    ``loss_aggregation`` makes of it before the update. ``mask[0] == 0``, and every float array is 0 where mask is 0.
    """

    tokens: NDArray[np.int32]
    mask: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    """The sampler's, nats, at ``temperature``."""
    advantages: NDArray[np.float32]
    versions: NDArray[np.int32]
    """The policy version that drew each target; -1 where mask is 0."""
    temperature: float = 1.0
    """Every logprob of the row, sampler's and trainer's, is of softmax(logits / temperature)."""
    old_logprobs: NDArray[np.float32] | None = None
    """The trainer's, before the batch's first update; None where that is the current forward itself."""
    ref_logprobs: NDArray[np.float32] | None = None
    meta: RowMeta = field(default_factory=_no_meta)

    def __post_init__(self) -> None:
        arrays: dict[str, NDArray[Any] | None] = {
            "mask": self.mask,
            "logprobs": self.logprobs,
            "advantages": self.advantages,
            "versions": self.versions,
            "old_logprobs": self.old_logprobs,
            "ref_logprobs": self.ref_logprobs,
        }
        where = f"row of task {self.meta.task_id!r}, sample {self.meta.sample}, role {self.meta.role!r}"
        for name, array in arrays.items():
            if array is not None and len(array) != len(self.tokens):
                raise ValueError(f"{where}: {name} has {len(array)} entries for {len(self.tokens)} tokens")
        if len(self.tokens) and self.mask[0] != 0:
            raise ValueError(f"{where}: the first token can't be a target, it has no context")
        for name in ("logprobs", "advantages", "old_logprobs", "ref_logprobs"):
            array = arrays[name]
            if array is None:
                continue
            if np.any(array[self.mask == 0] != 0):
                raise ValueError(f"{where}: {name} is not 0 where the mask is 0")
            if not np.all(np.isfinite(array)):
                raise ValueError(f"{where}: {name} holds NaN or infinity")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ValueError(f"{where}: temperature is {self.temperature}, must be above 0")

    @property
    def n_targets(self) -> int:
        """How many tokens are trained on."""
        return int(np.count_nonzero(self.mask))


def ids(values: Sequence[int]) -> NDArray[np.int32]:
    """Token ids as the arrays above hold them, int32[T]."""
    return np.asarray(values, dtype=np.int32)
