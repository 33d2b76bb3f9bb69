"""A real gateway on loopback over a scripted policy: the tokenizer and template of rllm-tiny, replies by rote."""

import asyncio
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from rllm.errors import ContextLengthError
from rllm.gateway import Gateway, PolicyUpstream
from rllm.models import resolve_model
from rllm.plugins import PluginManager
from rllm.protocols import ModelInfo
from rllm.rendering import Renderer
from rllm.trace import Session, TraceStore
from rllm.types import Completion, Prompt, SamplingParams


class ScriptedSampler:
    """Says the next text of its script to each call; logprob of a token is −id/1000, so that every one is known."""

    def __init__(self, tokenizer, context_tokens: int) -> None:
        self.tokenizer, self.context_tokens = tokenizer, context_tokens
        self.script: list[str] = []
        self.default = "fine<|im_end|>"
        self.asked: list[tuple[list[int], SamplingParams]] = []
        self.version = 0
        self.delay_s = 0.0
        self.fails: Exception | None = None
        self.cancelled = 0

    async def sample(self, prompt: Prompt, params: SamplingParams, n: int = 1) -> list[Completion]:
        if len(prompt) >= self.context_tokens:
            raise ContextLengthError(len(prompt), self.context_tokens)
        self.asked.append((prompt.ids.tolist(), params))
        version = self.version
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fails is not None:
            raise self.fails
        return [self._say(params, version) for _ in range(n)]

    def _say(self, params: SamplingParams, version: int) -> Completion:
        text = self.script.pop(0) if self.script else self.default
        whole = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = np.array(whole[: params.max_tokens], dtype=np.int32)
        alternatives = tuple(tuple((int(i) - k, -(int(i) - k) / 1000) for k in range(params.top_logprobs)) for i in ids)
        return Completion(
            ids=ids,
            logprobs=(-ids / 1000).astype(np.float32),
            versions=np.full(len(ids), version, dtype=np.int32),
            finish_reason="stop" if len(ids) == len(whole) else "length",
            top_logprobs=alternatives if params.top_logprobs else (),
        )

    async def score(self, prompt: Prompt):
        raise NotImplementedError("the gateway never scores")


class Bench:
    """A gateway, what it asked its policy, and how to open sessions."""

    def __init__(self, gateway: Gateway, sampler: ScriptedSampler, renderer: Renderer, store: TraceStore) -> None:
        self.gateway, self.sampler, self.renderer, self.store = gateway, sampler, renderer, store

    def open(self, *, is_training: bool = True, sample: int = 0, max_tokens: int = 64, **limits: int) -> Session:
        return self.gateway.open_session(
            task_id="t",
            sample=sample,
            phase="test",
            is_training=is_training,
            sampling=SamplingParams(max_tokens=max_tokens),
            **limits,
        )

    def steps(self, session: Session):
        return self.store.steps(session.id)


@pytest.fixture(scope="session")
def tiny_tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(resolve_model("rllm-tiny").path)


@pytest.fixture
def make_bench(tiny_tokenizer, tmp_path) -> Iterator[Callable[..., Bench]]:
    opened: list[Bench] = []

    def make(**options) -> Bench:
        info = ModelInfo("scripted", tiny_tokenizer, 512, (tiny_tokenizer.eos_token_id,), len(tiny_tokenizer))
        sampler = ScriptedSampler(tiny_tokenizer, 512)
        renderer = Renderer(tiny_tokenizer, context_tokens=512)
        store = TraceStore(tmp_path / f"traces{len(opened)}.sqlite")
        plugins = PluginManager(load_installed=False)
        gateway = Gateway(
            store=store, policy=PolicyUpstream(sampler, renderer, info), plugins=plugins, run_seed=7, **options
        )
        gateway.start()
        opened.append(Bench(gateway, sampler, renderer, store))
        return opened[-1]

    yield make
    for bench in opened:
        bench.gateway.stop()
        bench.store.close()


@pytest.fixture
def bench(make_bench) -> Bench:
    return make_bench()
