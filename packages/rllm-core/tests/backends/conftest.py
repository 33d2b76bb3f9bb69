"""Opens embedded engines on tiny models and closes them again; small builders for rows and losses."""

from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest
import torch

from rllm.backends.local.backend import LocalBackend
from rllm.backends.local.settings import TinkerSettings
from rllm.protocols import BackendRequest, LossSpec
from rllm.types import Prompt, Row

# The tests' own reference models run in pytest's thread: tiny ones, for which a second thread is only a burden.
torch.set_num_threads(1)


@pytest.fixture
async def open_backend(model_folder) -> AsyncIterator[Callable[..., LocalBackend]]:
    """``open_backend("llama", lora_rank=4, max_batch=8)``: settings of the request and of the engine."""
    opened: list[LocalBackend] = []

    def open_one(family="llama", *, path=None, seed=0, lora_rank=0, trains=True, **settings):
        settings = {"threads": 1, "device": "cpu", **settings}
        request = BackendRequest(
            model_name=family,
            model_path=str(path or model_folder(family)),
            seed=seed,
            lora_rank=lora_rank,
            lora_alpha=2.0 * lora_rank,
            settings=TinkerSettings(**settings),
            trains=trains,
        )
        opened.append(LocalBackend(request))
        return opened[-1]

    yield open_one
    for backend in opened:
        await backend.close()


def prompt_of(n, seed=0, vocab=300) -> Prompt:
    """Of ``n`` random tokens; the shorter ones of a seed are beginnings of the longer."""
    return Prompt(np.random.default_rng(seed).integers(3, vocab, n))


def same(a, b) -> bool:
    """Whether two completions are the same to the last bit."""
    return a.ids.tolist() == b.ids.tolist() and a.logprobs.tobytes() == b.logprobs.tobytes()


def make_row(prompt, completion, *, advantage=1.0, weight=1.0, logprobs=None, temperature=1.0, **extra) -> Row:
    """One turn: the prompt is context, the completion is trained on."""
    n, m = len(prompt), len(completion)
    behind = np.zeros(n, np.float32)
    lp = np.full(m, -2.0, np.float32) if logprobs is None else np.asarray(logprobs, np.float32)
    return Row(
        tokens=np.concatenate([prompt, completion]).astype(np.int32),
        mask=np.concatenate([behind, np.full(m, weight, np.float32)]),
        logprobs=np.concatenate([behind, lp]),
        advantages=np.concatenate([behind, np.full(m, advantage, np.float32)]),
        versions=np.concatenate([np.full(n, -1), np.zeros(m)]).astype(np.int32),
        temperature=temperature,
        **extra,
    )


def random_rows(vocab=300, groups=3, size=4, temperature=1.0, seed=0) -> list[Row]:
    """Groups that share a prompt, prompts that share a beginning, completions of several lengths, some alike."""
    draw = np.random.default_rng(seed)
    stem = draw.integers(3, vocab, 6)
    rows = []
    for _ in range(groups):
        prompt = np.concatenate([stem, draw.integers(3, vocab, draw.integers(2, 9))])
        answers = [draw.integers(3, vocab, draw.integers(1, 12)) for _ in range(size - 1)]
        answers.append(np.concatenate([answers[0], draw.integers(3, vocab, 3)]))
        rows += [
            make_row(
                prompt,
                answer,
                advantage=draw.normal(),
                weight=draw.uniform(0.2, 1.0),
                logprobs=draw.normal(-3, 0.3, len(answer)),
                temperature=temperature,
            )
            for answer in answers
        ]
    return rows


def importance_sampling(logprobs, inputs):
    """The policy gradient with its ratio: -A π/π_old, so that its gradient at π = π_old is -A ∇ log π."""
    ratio = torch.exp(logprobs - inputs.old_logprobs)
    return -ratio * inputs.advantages, {"ratio": ratio.detach()}


def spec(function=importance_sampling, **settings) -> LossSpec:
    return LossSpec("test", function, **settings)
