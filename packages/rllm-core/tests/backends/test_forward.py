"""The engine's forward over shared prefixes equals transformers' own forward of each sequence alone."""

import asyncio

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rllm.errors import ModelError
from rllm.types import Prompt, SamplingParams

from .conftest import importance_sampling, make_row, random_rows, spec

FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt_oss", "gpt2"]


def reference_model(folder):
    """transformers alone, with its plainest attention."""
    attention = None if folder.name.startswith("mamba") else "eager"
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()


def reference_logprobs(model, row):
    """float[T] with grad: log softmax(logits / temperature) of each token of one row, by a plain forward."""
    tokens = torch.from_numpy(row.tokens).long()
    logits = model(input_ids=tokens[None]).logits[0, :-1].float() / row.temperature
    chosen = torch.log_softmax(logits, -1).gather(1, tokens[1:, None])[:, 0]
    return torch.cat([torch.zeros(1), chosen])


PRODUCTS = ["torch", "onednn"]


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("family", FAMILIES)
async def test_logprobs_equal_a_plain_forward(family, products, open_backend, model_folder):
    backend = open_backend(family, products=products)
    rows = random_rows(temperature=0.7)
    model = reference_model(model_folder(family))
    for row, got in zip(rows, await backend.logprobs(rows), strict=True):
        with torch.no_grad():
            expected = reference_logprobs(model, row).numpy() * (row.mask != 0)
        np.testing.assert_allclose(got, expected, atol=2e-4)


@pytest.mark.parametrize("family", FAMILIES)
async def test_scores_equal_a_plain_forward(family, open_backend, model_folder):
    ids = np.random.default_rng(1).integers(3, 300, 40)
    got = await open_backend(family).sampler().score(Prompt(ids))
    row = make_row(ids[:1], ids[1:])
    with torch.no_grad():
        expected = reference_logprobs(reference_model(model_folder(family)), row).numpy()
    assert np.isnan(got[0])
    np.testing.assert_allclose(got[1:], expected[1:], atol=2e-4)


def reference_gradient(model, rows, *, is_frozen=lambda name: False):
    """Of Σ mask × -A log π by plain forwards, one row after the other."""
    model.zero_grad()
    for row in rows:
        weights = torch.from_numpy(row.mask * row.advantages)
        (-(weights * reference_logprobs(model, row)).sum()).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


async def engine_gradient(backend, rows, loss):
    """The gradient that the trainer hands to the optimizer, by a stand-in for the optimizer's step."""
    trainer = backend._engine._trainer
    taken = {}

    def keep(parameters, optim):
        names = {id(p): n for n, p in backend._engine._policy.network.named_parameters()}
        taken.update({names[id(p)]: p.grad.clone() for p in parameters if p.grad is not None})
        return 0.0

    trainer._apply = keep
    return taken, backend._thread.submit(lambda: trainer.step(rows, loss, None)).result()


def assert_same_gradient(got, expected, rtol):
    assert got.keys() == expected.keys()
    scale = max(g.abs().max() for g in expected.values())
    for name, gradient in expected.items():
        gap = (got[name] - gradient).abs().max()
        assert gap <= rtol * scale, f"{name}: {gap} of {scale}"


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("family", FAMILIES)
async def test_the_gradient_equals_that_of_plain_forwards(family, products, open_backend, model_folder):
    rows = random_rows(temperature=0.7)
    got, _ = await engine_gradient(open_backend(family, products=products), rows, spec())
    model = reference_model(model_folder(family))
    assert_same_gradient(got, reference_gradient(model, rows), rtol=1e-4)


@pytest.mark.parametrize("max_tokens", [8, 30, 64])
async def test_the_gradient_does_not_depend_on_the_micro_batch_split(max_tokens, open_backend):
    rows = random_rows()
    whole, one = await engine_gradient(open_backend(micro_batch_tokens=10_000), rows, spec(ratio_cap=2.0))
    parts, many = await engine_gradient(open_backend(micro_batch_tokens=max_tokens), rows, spec(ratio_cap=2.0))
    assert_same_gradient(parts, whole, rtol=1e-5)
    assert many.loss == pytest.approx(one.loss, rel=1e-5)
    assert many.metrics == pytest.approx(one.metrics, rel=1e-4, abs=1e-6)


async def test_gradient_checkpointing_changes_nothing(open_backend):
    rows = random_rows()
    plain, _ = await engine_gradient(open_backend(), rows, spec())
    backend = open_backend(gradient_checkpointing=True)
    runs = []
    backend._engine._policy.network.base_model.layers[0].self_attn.register_forward_pre_hook(lambda *_: runs.append(1))
    saved, _ = await engine_gradient(backend, rows, spec())
    assert_same_gradient(saved, plain, rtol=1e-6)
    assert len(runs) == 3, "forward, and again in the backward, after the forward that memory is measured by"


async def test_logits_in_chunks_that_are_computed_again_give_the_same_gradient(open_backend, monkeypatch):
    rows = random_rows()
    plain, _ = await engine_gradient(open_backend(), rows, spec())
    monkeypatch.setattr("rllm.backends.local.logprobs.CHUNK_BYTES", 8 * 4 * 320)
    monkeypatch.setattr("rllm.backends.local.logprobs.KEEP_BYTES", 0)
    chunked, _ = await engine_gradient(open_backend(), rows, spec())
    assert_same_gradient(chunked, plain, rtol=1e-5)


async def test_the_gradient_agrees_with_finite_differences_of_the_whole_objective(open_backend):
    """The loss with KL term, ratio cap and temperature, as one number, moved along a random direction."""
    backend = open_backend()
    rows = random_rows(temperature=0.7)
    old = await backend.logprobs(rows)
    draw = np.random.default_rng(3)
    rows = [
        make_row_like(row, old_logprobs=lp, ref_logprobs=(lp + draw.normal(0, 0.2, len(lp)) * (row.mask != 0)))
        for row, lp in zip(rows, old, strict=True)
    ]
    loss = spec(importance_sampling, ratio_cap=1.5, kl_coef=0.3)
    gradient, _ = await engine_gradient(backend, rows, loss)
    network = backend._engine._policy.network
    parameters = dict(network.named_parameters())
    direction = {n: g / g.norm() for n, g in gradient.items()}
    slope = sum(float((g * direction[n]).sum()) for n, g in gradient.items())

    async def value(step):
        with torch.no_grad():
            for n, p in parameters.items():
                p.add_(direction[n], alpha=step)
        _, result = await engine_gradient(backend, rows, loss)
        with torch.no_grad():
            for n, p in parameters.items():
                p.sub_(direction[n], alpha=step)
        return result.loss

    step = 1e-3
    measured = (await value(step) - await value(-step)) / (2 * step)
    assert measured == pytest.approx(slope, rel=2e-2)


def make_row_like(row, **changes):
    import dataclasses

    changes = {k: np.asarray(v, np.float32) for k, v in changes.items()}
    return dataclasses.replace(row, **changes)


@pytest.mark.parametrize("family", ["bloom", "mamba"])
async def test_a_model_without_our_attention_gives_the_same_numbers_without_sharing(
    family, open_backend, model_folder, caplog
):
    backend = open_backend(family, context_tokens=64)
    assert "without shared prefixes" in caplog.text
    rows = random_rows(temperature=0.7)
    model = reference_model(model_folder(family))
    for row, got in zip(rows, await backend.logprobs(rows), strict=True):
        with torch.no_grad():
            expected = reference_logprobs(model, row).numpy() * (row.mask != 0)
        np.testing.assert_allclose(got, expected, atol=2e-4)
    gradient, _ = await engine_gradient(backend, rows, spec())
    assert_same_gradient(gradient, reference_gradient(model, rows), rtol=1e-4)
    prompts = [Prompt([5, 6, 7 + k % 2]) for k in range(5)]
    drawn = await asyncio.gather(
        *(backend.sampler().sample(p, SamplingParams(max_tokens=6 + k, seed=k)) for k, p in enumerate(prompts))
    )
    rows = [make_row(p.ids, c.ids, logprobs=c.logprobs) for p, (c,) in zip(prompts, drawn, strict=True)]
    for row, lp in zip(rows, await backend.logprobs(rows), strict=True):
        np.testing.assert_allclose(lp, row.logprobs, atol=1e-4)


async def test_a_model_with_logits_of_its_own_making_is_refused(open_backend, model_folder, monkeypatch):
    from transformers import LlamaForCausalLM

    forward = LlamaForCausalLM.forward

    def bent(self, *arguments, **keywords):
        output = forward(self, *arguments, **keywords)
        output.logits = output.logits**2
        return output

    monkeypatch.setattr(LlamaForCausalLM, "forward", bent)
    with pytest.raises(ModelError, match="LlamaForCausalLM makes its logits"):
        open_backend("llama")
