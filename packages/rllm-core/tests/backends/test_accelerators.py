"""The engine on CUDA and MPS, where there is one: the same numbers as plain forwards on the CPU, up to rounding."""

import asyncio

import numpy as np
import pytest
import torch

from rllm.errors import ConfigError
from rllm.protocols import AdamParams
from rllm.types import Prompt, SamplingParams

from .conftest import make_row, random_rows, spec
from .test_forward import assert_same_gradient, engine_gradient, reference_gradient, reference_logprobs, reference_model

DEVICES = [
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")),
    pytest.param("mps", marks=pytest.mark.skipif(not torch.backends.mps.is_available(), reason="no Apple GPU here")),
]


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    # TF32 would round the reference's and our matrix products to ten bits.
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    return request.param


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "gemma3"])
async def test_logprobs_and_gradients_equal_plain_forwards(family, device, open_backend, model_folder):
    rows = random_rows(temperature=0.7)
    backend = open_backend(family, device=device, precision="fp32")
    model = reference_model(model_folder(family))
    for row, got in zip(rows, await backend.logprobs(rows), strict=True):
        with torch.no_grad():
            expected = reference_logprobs(model, row).numpy() * (row.mask != 0)
        np.testing.assert_allclose(got, expected, atol=5e-4)
    got, _ = await engine_gradient(backend, rows, spec())
    expected = reference_gradient(model, rows)
    assert_same_gradient({name: g.cpu() for name, g in got.items()}, expected, rtol=1e-3)


@pytest.mark.parametrize(("precision", "gap"), [("fp32", 1e-4), ("bf16", 0.5)])
async def test_sampler_and_trainer_agree_over_turns(precision, gap, device, open_backend):
    backend = open_backend(device=device, precision=precision, max_batch=6, prefill_tokens=32)

    async def conversation(k):
        ids, rows = np.arange(3, 20 + k), []
        for turn in range(3):
            (drawn,) = await backend.sampler().sample(Prompt(ids), SamplingParams(max_tokens=5 + k, seed=10 * k + turn))
            rows.append(make_row(ids, drawn.ids, logprobs=drawn.logprobs))
            ids = np.concatenate([ids, drawn.ids, np.arange(5, 9)])
        return rows

    rows = [row for rows in await asyncio.gather(*(conversation(k) for k in range(9))) for row in rows]
    gaps = [np.abs(lp - row.logprobs).max() for row, lp in zip(rows, await backend.logprobs(rows), strict=True)]
    assert max(gaps) < gap
    await backend.train_step(rows, spec(ratio_cap=2.0), AdamParams(lr=1e-3))
    assert await backend.publish() == 1
    (drawn,) = await backend.sampler().sample(Prompt([5, 6, 7]), SamplingParams(max_tokens=4))
    assert drawn.versions.tolist() == [1] * len(drawn.ids)


async def test_determinism_is_refused(device, open_backend):
    with pytest.raises(ConfigError, match=r"tinker\.deterministic=true, but on .*tinker\.device=cpu"):
        open_backend(device=device, deterministic=True)
