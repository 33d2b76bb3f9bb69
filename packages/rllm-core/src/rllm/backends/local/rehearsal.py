"""The embedded engine without a model's weights: what a step will take, from the configuration and a measurement.

A model is layers of one kind between an embedding and a head. So two small models are made of its configuration, with
random weights, one layer and several, and run by the engine itself: a reading of prompts, a few decode steps, an
update. What the second takes more than the first is its layers'; the rest is counted up from there. That measures this
machine with this code at the widths and lengths of the run, and reads no weights. Memory is counted, not measured.

Left out: what the agent, the grader and the gateway take, and how often a completion ends before its limit.
"""

__all__ = ["LocalRehearsal"]

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
from transformers import AutoModelForCausalLM

from rllm.backends.local.backend import capabilities_of
from rllm.backends.local.cache import GROWTH
from rllm.backends.local.draws import SampleJob
from rllm.backends.local.loading import LoadedModel, info_of, load_config, load_tokenizer, pick_device
from rllm.backends.local.logprobs import CHUNK_BYTES, KEEP_BYTES
from rllm.backends.local.machine import total_memory
from rllm.backends.local.policy import Policy
from rllm.backends.local.room import ENOUGH_TOKENS, measure_saved, room_for
from rllm.backends.local.sampling import KV_BYTES, SamplingLoop
from rllm.backends.local.settings import TinkerSettings
from rllm.backends.local.starting import has_onednn, is_mixed, threads_for
from rllm.backends.local.trainer import Trainer
from rllm.errors import BackendError, ConfigError
from rllm.protocols import AdamParams, BackendRequest, Capabilities, CostEstimate, LossSpec, ModelInfo, Workload
from rllm.types import Row, SamplingParams
from rllm.update.losses import importance_sampling

UPDATE_TOKENS = 512
"""Targets of the update that is measured, unless one row has more."""
DECODE_STEPS = 4
"""That are measured."""
REPEATS = 3
SLICE_BYTES = 128 * 2**20
"""Of the layers of the larger model: fewer would stay in the processor's cache, as the whole model's don't."""


@dataclass(frozen=True)
class _Costs:
    """Of a model with some number of layers; all of them grow linearly with it."""

    trained: float
    kv_bytes: float
    saved_bytes: float
    """That a token keeps for the backward."""
    read_s: float = 0.0
    """Of a prompt token."""
    decode_s: float = 0.0
    """Of a decode step of the whole batch."""
    target_s: float = 0.0
    """Forward and backward, of a token that is trained on."""
    apply_s: float = 0.0
    """Of the optimizer's step."""

    def grown(self, several: "_Costs", n: int, layers: int) -> "_Costs":
        """Of ``layers`` layers, where this is one and ``several`` are ``n``."""
        pairs = zip(vars(self).values(), vars(several).values(), strict=True)
        return _Costs(*(a + (layers - 1) / (n - 1) * max(0.0, b - a) for a, b in pairs))


class LocalRehearsal:
    """Raises ModelError, ConfigError, as the engine would; BackendError where this model can't be rehearsed."""

    def __init__(self, request: BackendRequest) -> None:
        settings = request.settings if request.settings is not None else TinkerSettings()
        if not isinstance(settings, TinkerSettings):
            raise ConfigError(f"the embedded engine takes TinkerSettings, got {type(settings).__name__}")
        self._request, self._settings = request, settings
        self._before = psutil.Process().memory_info().rss
        self._device = pick_device(settings.device)
        self._config = load_config(request.model_path)
        self._tokenizer = load_tokenizer(request)
        with torch.device("meta"):
            whole = AutoModelForCausalLM.from_config(self._config, dtype=torch.float32)
        self._model = info_of(request, settings, whole, self._tokenizer)
        self._linear = sum(m.weight.numel() for m in whole.modules() if isinstance(m, torch.nn.Linear))
        self._layers = int(self._config.get_text_config().num_hidden_layers)
        loaded = self._slice(1)
        self._has_onednn = has_onednn(loaded, settings)
        self._is_mixed = is_mixed(loaded, settings, has_onednn=self._has_onednn)

    @property
    def model(self) -> ModelInfo:
        return self._model

    @property
    def capabilities(self) -> Capabilities:
        return capabilities_of(is_mixed=self._is_mixed)

    def estimate(self, workload: Workload) -> CostEstimate:
        """See ``Rehearsal``."""
        had_threads = torch.get_num_threads()
        torch.set_num_threads(threads_for(self._model.n_parameters, self._settings))
        try:
            costs, n = self._measured(1, workload), self._larger()
            if n > 1:
                costs = costs.grown(self._measured(n, workload), n, self._layers)
        finally:
            torch.set_num_threads(had_threads)
        memory, peak = self._memory(costs, workload)
        return CostEstimate(
            n_parameters=self._model.n_parameters,
            n_trained=round(costs.trained),
            memory=memory,
            peak_bytes=peak,
            machine_bytes=total_memory(self._device),
            seconds=self._seconds(costs, workload),
            basis=(
                f"measured just now on {self._device.type} with 1 and {n} of the model's {self._layers} layers and "
                f"random weights, {'bf16' if self._is_mixed else 'fp32'}; every completion at its limit, one model "
                "call a rollout, and no time for the agent and the grader"
            ),
        )

    def _larger(self) -> int:
        """How many layers the larger of the two models has."""
        layer = 4 * self._linear // max(1, self._layers)  # the head is counted in: a layer may be a bit smaller
        return min(self._layers, max(2, math.ceil(SLICE_BYTES / layer)))

    def _slice(self, layers: int) -> LoadedModel:
        """The model with its first layers only, and random weights."""
        config = copy.deepcopy(self._config)
        text = config.get_text_config()
        text.num_hidden_layers = layers
        if vars(text).get("layer_types"):  # some configurations make it of others
            text.layer_types = text.layer_types[:layers]
        try:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                network = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
            raise BackendError(
                f"{self._model.name} can't be made with {layers} of its layers, by which a step is estimated: {error}"
            ) from error
        return LoadedModel(network.eval().to(self._device), self._model, self._device)

    def _measured(self, layers: int, workload: Workload) -> _Costs:
        policy = Policy(
            self._slice(layers),
            is_mixed=self._is_mixed,
            has_onednn=self._has_onednn,
            lora_rank=self._request.lora_rank,
            lora_alpha=self._request.lora_alpha,
            trains=True,
            checkpoints=self._settings.gradient_checkpointing is not False,
        )
        read_s, decode_s = self._sampling(policy, workload) if workload.samples else (0.0, 0.0)
        target_s, apply_s = self._update(policy, workload)
        return _Costs(
            trained=sum(p.numel() for p in policy.trainable()),
            kv_bytes=policy.kv_bytes_per_token,
            saved_bytes=measure_saved(policy, self._settings),
            read_s=read_s,
            decode_s=decode_s,
            target_s=target_s,
            apply_s=apply_s,
        )

    def _batch(self, workload: Workload) -> int:
        return min(workload.rows, self._settings.max_batch)

    def _sampling(self, policy: Policy, workload: Workload) -> tuple[float, float]:
        """Seconds of reading a prompt token, and of a decode step of the whole batch half-way through a completion."""
        loop = SamplingLoop(policy, self._settings, ())
        length = max(1, workload.prompt_tokens + workload.completion_tokens // 2)
        batch, group = self._batch(workload), math.ceil(workload.rows / workload.prompts)
        groups = [min(group, batch - k) for k in range(0, batch, group)]
        # A piece of the prompts is read between two decode steps; only when all are read is the whole batch decoding.
        reading_steps = math.ceil(len(groups) * length / self._settings.prefill_tokens) + 1
        limit = reading_steps + DECODE_STEPS + 1
        length = min(length, max(1, self._model.context_tokens - limit))
        draw = np.random.default_rng(0)
        for k, n in enumerate(groups):
            prompt = draw.integers(0, self._model.vocab_size, length).astype(np.int32)
            params = SamplingParams(max_tokens=limit, temperature=1.0, seed=k)
            loop.add(SampleJob(prompt, params, n, limit, self._tokenizer))
        reading = sum(_seconds(loop.step) for _ in range(reading_steps))
        decode_s = _median([_seconds(loop.step) for _ in range(DECODE_STEPS)])
        loop.abort()
        return max(0.0, reading - reading_steps * decode_s) / (len(groups) * length), decode_s

    def _update(self, policy: Policy, workload: Workload) -> tuple[float, float]:
        """Seconds of a target's forward and backward, its share of the prompt included, and of an optimizer step."""
        trainer = Trainer(policy, self._settings)
        few, many = 1, max(2, math.ceil(UPDATE_TOKENS / workload.completion_tokens))
        self._step(trainer, self._rows(workload, few, short=True))  # measures the room, makes the optimizer's state
        short, rows = self._rows(workload, few, short=True), self._rows(workload, many)
        apply_s = _median([_seconds(lambda: self._step(trainer, short)) for _ in range(REPEATS)])
        whole = _median([_seconds(lambda: self._step(trainer, rows)) for _ in range(REPEATS)])
        return max(0.0, whole - apply_s) / sum(row.n_targets for row in rows), apply_s

    def _rows(self, workload: Workload, count: int, *, short: bool = False) -> list[Row]:
        """Rows as the run will have them, or of one target."""
        draw = np.random.default_rng(1)
        group = math.ceil(workload.rows / workload.prompts)
        prompt = draw.integers(0, self._model.vocab_size, max(1, workload.prompt_tokens)).astype(np.int32)
        n = 1 if short else workload.completion_tokens
        rows: list[Row] = []
        for k in range(count):
            if k % group == 0:
                prompt = draw.integers(0, self._model.vocab_size, len(prompt)).astype(np.int32)
            head = prompt[-1:] if short else prompt
            mask = np.concatenate([np.zeros(len(head), np.float32), np.ones(n, np.float32)])
            tokens = np.concatenate([head, draw.integers(0, self._model.vocab_size, n).astype(np.int32)])
            rows.append(
                Row(
                    tokens=tokens,
                    mask=mask,
                    logprobs=-mask,
                    advantages=mask * (1e-3 if k % 2 else -1e-3),
                    versions=np.zeros(len(mask), np.int32),
                )
            )
        return rows

    @staticmethod
    def _step(trainer: Trainer, rows: Sequence[Row]) -> None:
        trainer.step(rows, LossSpec("importance_sampling", importance_sampling), AdamParams(lr=1e-9))

    def _memory(self, costs: _Costs, workload: Workload) -> tuple[dict[str, int], int]:
        """Bytes by what holds them, and the most that is held at once."""
        rows, prompts = workload.rows, workload.prompts
        of_row = workload.prompt_tokens + workload.completion_tokens
        distinct = prompts * workload.prompt_tokens + rows * workload.completion_tokens
        weights = 4 * self._model.n_parameters + 4 * round(costs.trained) * (self._request.lora_rank > 0)
        room = room_for(
            self._settings,
            per_token=max(1, round(costs.saved_bytes)),
            memory=total_memory(self._device),
            weights=weights,
            trained=round(costs.trained),
        )
        group = workload.prompt_tokens + -(-rows // max(1, prompts)) * workload.completion_tokens
        most = room.micro_batch_tokens if self._settings.micro_batch_tokens else ENOUGH_TOKENS + group
        micro = min(distinct, max(min(most, room.micro_batch_tokens), of_row))
        if self._is_mixed:
            weights += 2 * self._linear
        targets = round(micro * rows * workload.completion_tokens / max(1, distinct))
        softmaxes = min(KEEP_BYTES, targets * self._model.vocab_size * 4) + 3 * CHUNK_BYTES
        memory = {
            "the program": self._before,
            "weights": weights,
            "optimizer": 8 * round(costs.trained),
            "gradients": 4 * round(costs.trained),
            "activations": round(costs.saved_bytes) * micro + softmaxes,
        }
        updating = sum(memory.values())
        sampling = 0
        if workload.samples:
            limit = self._settings.kv_cache_tokens or KV_BYTES // max(1, round(costs.kv_bytes))
            held = self._batch(workload) * (of_row + GROWTH)
            remembered = max(distinct, workload.validation_rows * of_row)
            memory["keys and values"] = round(costs.kv_bytes) * min(limit, held + remembered)
            # The trainer's gradients and activations are gone while completions are drawn, and the other way round.
            sampling = updating - memory["gradients"] - memory["activations"] + memory["keys and values"]
        return memory, max(updating, sampling)

    def _seconds(self, costs: _Costs, workload: Workload) -> dict[str, float]:
        updates = workload.rows * workload.completion_tokens * costs.target_s + workload.updates * costs.apply_s
        if not workload.samples:
            return {"updates": updates}
        found = {"rollouts": self._drawing(costs, workload.rows, workload.prompts, workload), "updates": updates}
        if workload.validation_rows:
            found["validation"] = self._drawing(costs, workload.validation_rows, workload.validation_rows, workload)
        return found

    def _drawing(self, costs: _Costs, rows: int, prompts: int, workload: Workload) -> float:
        """Seconds of that many completions: their prompts are read once each, and a batch is drawn at a time."""
        waves = rows / self._batch(workload)
        return prompts * workload.prompt_tokens * costs.read_s + waves * workload.completion_tokens * costs.decode_s


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
