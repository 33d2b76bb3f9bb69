"""The embedded engine as a TrainBackend: the face that the loop and the gateway see.

All computing is done in the engine's thread; these methods hand it work and await the answer, from any event loop.
Sampler and trainer share one set of weights, so from a ``train_step`` until ``publish`` nothing can be drawn.
"""

__all__ = ["LocalBackend", "LocalSampler"]

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rllm.backends.local.draws import SampleJob
from rllm.backends.local.export import export_adapter, export_policy
from rllm.backends.local.heap import give_memory_back, keep_freed_memory
from rllm.backends.local.loading import LoadedModel, load_model, load_weights
from rllm.backends.local.policy import Policy
from rllm.backends.local.sampling import SamplingLoop
from rllm.backends.local.settings import TinkerSettings
from rllm.backends.local.starting import check_deterministic, describe, has_onednn, is_mixed, set_threads
from rllm.backends.local.thread import EngineThread
from rllm.backends.local.trainer import Trainer
from rllm.errors import BackendError, ConfigError, ContextLengthError
from rllm.protocols import AdamParams, BackendRequest, Capabilities, ExportKind, LossSpec, ModelInfo, StepResult
from rllm.types import Completion, Prompt, Row, SamplingParams

log = logging.getLogger("rllm.backends")

T = TypeVar("T")


class LocalBackend:
    """Loads a model and serves and trains it. Raises ModelError, ConfigError."""

    def __init__(self, request: BackendRequest) -> None:
        settings = request.settings if request.settings is not None else TinkerSettings()
        if not isinstance(settings, TinkerSettings):
            raise ConfigError(f"the embedded engine takes TinkerSettings, got {type(settings).__name__}")
        self._request = request
        self._settings = settings
        self._keeps_memory = keep_freed_memory()
        self._thread = EngineThread(on_main_heap=self._keeps_memory)
        try:
            self._engine = self._thread.submit(lambda: _Engine(request, settings, self._thread)).result()
        except BaseException:
            self._thread.close()
            raise
        self._sampler = LocalSampler(self._thread, self._engine)

    @property
    def model(self) -> ModelInfo:
        return self._engine.info

    @property
    def capabilities(self) -> Capabilities:
        return capabilities_of(is_mixed=self._engine.is_mixed)

    def sampler(self) -> "LocalSampler":
        return self._sampler

    async def train_step(self, rows: Sequence[Row], loss: LossSpec, optim: AdamParams) -> StepResult:
        """See ``TrainBackend``. Raises BackendError while a completion is being drawn: it would see both weights."""
        return await _await(self._thread, lambda: self._engine.train_step(rows, loss, optim))

    async def logprobs(self, rows: Sequence[Row], of: str = "current") -> list[NDArray[np.float32]]:
        if of not in ("current", "reference"):
            raise ConfigError(f"logprobs of={of!r}: it is 'current' or 'reference'")
        return await _await(self._thread, lambda: self._engine.logprobs(rows, of == "reference"))

    async def publish(self) -> int:
        return await _await(self._thread, self._engine.publish)

    async def save(self, folder: Path) -> None:
        await _await(self._thread, lambda: self._engine.save(folder))

    async def restore(self, folder: Path, *, with_optimizer: bool = True) -> None:
        await _await(self._thread, lambda: self._engine.restore(folder, with_optimizer=with_optimizer))

    async def export(self, path: Path, what: ExportKind = "model") -> None:
        await _await(self._thread, lambda: self._engine.export(path, what))

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.close)
        if self._keeps_memory:
            give_memory_back()


def capabilities_of(*, is_mixed: bool) -> Capabilities:
    """What the engine can do in this precision."""
    return Capabilities(
        losses=None, lora=True, full_finetuning=True, penalties=True, kl=True, ratio_cap=True, exact=not is_mixed
    )


class LocalSampler:
    """The policy to draw from; one for the whole run."""

    def __init__(self, thread: EngineThread, engine: "_Engine") -> None:
        self._thread = thread
        self._engine = engine

    @property
    def version(self) -> int:
        return self._engine.version

    async def sample(self, prompt: Prompt, params: SamplingParams, n: int = 1) -> list[Completion]:
        """See ``Sampler``. The same prompt, parameters and seed give the same ``n`` completions (CPU, float32: to the
        last bit, whoever else is served). Raises ValueError for an empty prompt."""
        engine = self._engine
        job = SampleJob(prompt.ids, params, n, engine.room_for(prompt, params), engine.info.tokenizer)
        try:
            await _await(self._thread, lambda: engine.add(job))
            return await asyncio.wrap_future(job.future)
        finally:
            # Where this call was cancelled while the job was being handed over; else it is done, and this does nothing.
            job.future.cancel()

    async def score(self, prompt: Prompt) -> NDArray[np.float32]:
        self._engine.check_prompt(prompt)
        return await _await(self._thread, lambda: self._engine.score(prompt))


async def _await(thread: EngineThread, function: Callable[[], T]) -> T:
    return await asyncio.wrap_future(thread.submit(function))


class _Engine:
    """What the engine's thread works on. Its methods are called in that thread, but for the checks and properties."""

    def __init__(self, request: BackendRequest, settings: TinkerSettings, thread: EngineThread) -> None:
        loaded = load_model(request, settings)
        self.info = loaded.info
        self._request, self._settings = request, settings
        if loaded.device.type == "cpu":
            set_threads(loaded, settings)
        self._has_onednn = has_onednn(loaded, settings)
        self.is_mixed = is_mixed(loaded, settings, has_onednn=self._has_onednn)
        self._policy = self._policy_of(loaded, trains=request.trains)
        check_deterministic(self._policy, settings, self.info.name)
        self._runs_as = describe(self._policy, is_mixed=self.is_mixed, has_onednn=self._has_onednn)
        log.info("%s: %s", self.info.name, self._runs_as)
        self._trainer = Trainer(self._policy, settings)
        self._reference: Trainer | None = None
        self._loop = SamplingLoop(self._policy, settings, loaded.info.stop_ids)
        self._is_unpublished = False
        thread.attach(self._loop)

    def _policy_of(self, loaded: LoadedModel, *, trains: bool) -> Policy:
        return Policy(
            loaded,
            is_mixed=self.is_mixed,
            has_onednn=self._has_onednn,
            lora_rank=self._request.lora_rank if trains else 0,
            lora_alpha=self._request.lora_alpha,
            seed=self._request.seed,
            trains=trains,
            checkpoints=self._settings.gradient_checkpointing is not False,
        )

    @property
    def version(self) -> int:
        return self._loop.version

    def check_prompt(self, prompt: Prompt) -> None:
        """Raises ValueError for ids that are no tokens of the model, ContextLengthError."""
        if len(prompt) == 0:
            raise ValueError("the prompt is empty; it needs at least one token")
        low, high = int(prompt.ids.min()), int(prompt.ids.max())
        if low < 0 or high >= self.info.vocab_size:
            raise ValueError(
                f"the prompt holds the id {low if low < 0 else high}, but the model's tokens are 0 to "
                f"{self.info.vocab_size - 1}: it was made by another model's tokenizer"
            )
        if len(prompt) > self.info.context_tokens:
            raise ContextLengthError(len(prompt), self.info.context_tokens)

    def room_for(self, prompt: Prompt, params: SamplingParams) -> int:
        """How many tokens may be drawn. Raises ContextLengthError where that is none."""
        self.check_prompt(prompt)
        room = self.info.context_tokens - len(prompt)
        if room < 1:
            raise ContextLengthError(len(prompt), self.info.context_tokens)
        return min(params.max_tokens, room)

    def add(self, job: SampleJob) -> None:
        self._require_published()
        self._loop.add(job)

    def score(self, prompt: Prompt) -> NDArray[np.float32]:
        self._require_published()
        return self._loop.score(prompt.ids)

    def _require_published(self) -> None:
        if self._is_unpublished:
            raise BackendError("the weights have been trained but not published; call publish() before drawing")

    def _require_idle(self, what: str) -> None:
        self._loop.drop_cancelled()
        if self._loop.in_flight:
            raise BackendError(
                f"{self._loop.in_flight} completions are being drawn; {what} would change the weights under them. "
                "Hold the gateway, or wait for them"
            )

    def train_step(self, rows: Sequence[Row], loss: LossSpec, optim: AdamParams) -> StepResult:
        self._require_idle("a training step")
        # What keys and values took, the trainer's activations may have.
        self._loop.rest()
        result = self._trainer.step(rows, loss, optim)
        self._is_unpublished = True
        return result

    def logprobs(self, rows: Sequence[Row], of_reference: bool) -> list[NDArray[np.float32]]:
        if not of_reference:
            return self._trainer.logprobs(rows)
        if self._request.lora_rank > 0:
            return self._trainer.logprobs(rows, without_adapter=True)
        if self._reference is None:
            # The weights before training are the ones on disk: they cost memory only in a run that asks for them.
            network = load_weights(self._request.model_path).to(self._policy.device)
            loaded = LoadedModel(network, self.info, self._policy.device)
            self._reference = Trainer(self._policy_of(loaded, trains=False), self._settings)
        return self._reference.logprobs(rows)

    def publish(self) -> int:
        self._require_idle("publishing")
        self._loop.version += 1
        self._is_unpublished = False
        return self._loop.version

    def save(self, folder: Path) -> None:
        if self._is_unpublished:
            raise BackendError("the weights have been trained but not published; call publish() before saving")
        self._trainer.save(folder, self._loop.version, runs_as=self._runs_as)

    def restore(self, folder: Path, *, with_optimizer: bool) -> None:
        self._require_idle("restoring a checkpoint")
        self._loop.rest()
        self._loop.version = self._trainer.restore(folder, with_optimizer=with_optimizer, runs_as=self._runs_as)
        self._is_unpublished = False

    def export(self, path: Path, what: ExportKind) -> None:
        if what == "model":
            export_policy(self._policy, self.info.tokenizer, path)
        elif self._policy.adapted is None:
            raise ConfigError("this run trains all weights: there is no adapter to export. Set lora.rank above 0")
        else:
            export_adapter(self._policy, path)
