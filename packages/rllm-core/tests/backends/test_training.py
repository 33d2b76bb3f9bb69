"""Training: the optimizer's step, LoRA, bf16, the reference, publishing, exporting, and what is refused."""

import dataclasses

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllm.errors import BackendError, ConfigError, NothingToTrainError
from rllm.protocols import AdamParams, TrainBackend
from rllm.types import Prompt, SamplingParams

from .conftest import importance_sampling, make_row, random_rows, spec
from .test_forward import reference_gradient, reference_logprobs, reference_model

ADAM = AdamParams(lr=1e-2, clip_norm=0.5, weight_decay=0.1)


def step(rows, loss, optim):
    """The call of one training step on a backend, then published."""

    async def take(backend):
        result = await backend.train_step(rows, loss, optim)
        await backend.publish()
        return result

    return take


async def test_the_embedded_engine_is_a_backend(open_backend):
    assert isinstance(open_backend(), TrainBackend)


async def test_two_steps_equal_plain_forwards_with_clipping_and_adamw(open_backend, model_folder):
    rows = random_rows()
    backend = open_backend(micro_batch_tokens=40)
    model = reference_model(model_folder("llama"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=ADAM.lr, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
    for _ in range(2):
        result = await step(rows, spec(), ADAM)(backend)
        reference_gradient(model, rows)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        assert result.grad_norm == pytest.approx(float(norm), rel=1e-4)
    for row, got in zip(rows, await backend.logprobs(rows), strict=True):
        with torch.no_grad():
            expected = reference_logprobs(model, row).numpy() * (row.mask != 0)
        np.testing.assert_allclose(got, expected, atol=2e-3)


async def test_a_step_reports_the_loss_the_entropy_and_its_own_logprobs(open_backend, model_folder):
    rows = random_rows()
    backend = open_backend()
    result = await backend.train_step(rows, spec(), ADAM)
    model = reference_model(model_folder("llama"))
    entropies, loss = [], 0.0
    with torch.no_grad():
        for row, own in zip(rows, result.logprobs, strict=True):
            np.testing.assert_allclose(own, reference_logprobs(model, row).numpy() * (row.mask != 0), atol=2e-4)
            p = torch.softmax(model(input_ids=torch.from_numpy(row.tokens).long()[None]).logits[0, :-1], -1)
            entropies += (-(p * p.log()).sum(-1))[row.mask[1:] != 0].tolist()
            loss -= float((row.mask * row.advantages).sum())
    assert result.loss == pytest.approx(loss, rel=1e-4)
    assert result.metrics["entropy"] == pytest.approx(np.mean(entropies), rel=1e-4)
    assert result.metrics["ratio"] == pytest.approx(1.0, abs=1e-5)


async def test_gap_and_kl_between_sampler_and_trainer_are_what_their_formulas_say(open_backend):
    backend = open_backend()
    (lp,) = await backend.logprobs([make_row([5, 6, 7], [8, 9, 10])])
    shift = np.array([0.3, -0.2, 0.1])
    row = make_row([5, 6, 7], [8, 9, 10], logprobs=lp[3:] - shift)
    m = (await backend.train_step([row], spec(ratio_cap=1.2), ADAM)).metrics
    assert m["logprob_gap_mean"] == pytest.approx(0.2, abs=1e-5)
    assert m["logprob_gap_max"] == pytest.approx(0.3, abs=1e-5)
    assert m["kl_k1"] == pytest.approx(-shift.mean(), abs=1e-5)
    assert m["kl_k3"] == pytest.approx(np.mean(np.exp(shift) - 1 - shift), abs=1e-5)
    assert m["ratio_capped"] == pytest.approx(1 / 3)


async def test_the_ratio_cap_weights_each_tokens_loss(open_backend):
    backend = open_backend()
    (lp,) = await backend.logprobs([make_row([5, 6, 7], [8, 9])])
    row = make_row([5, 6, 7], [8, 9], logprobs=lp[3:] - np.log([4.0, 0.5]), advantage=1.0)
    result = await backend.train_step([row], spec(ratio_cap=2.0), ADAM)
    assert result.loss == pytest.approx(-(2.0 + 0.5), rel=1e-4)


async def test_the_reference_stays_what_the_model_was_before_training(open_backend):
    rows = random_rows()
    for rank in (0, 4):
        backend = open_backend(lora_rank=rank)
        before = await backend.logprobs(rows)
        for _ in range(3):
            await step(rows, spec(), ADAM)(backend)
        after, reference = await backend.logprobs(rows), await backend.logprobs(rows, of="reference")
        for a, b, c in zip(before, after, reference, strict=True):
            np.testing.assert_allclose(c, a, atol=1e-5)
            assert np.abs(b - a).max() > 1e-3


async def test_a_kl_term_pulls_the_policy_back_to_the_reference(open_backend):
    """At equal advantages of 0 the gradient is the KL's alone: k3 with d = ref - lp has slope 1 - e^d in lp."""
    backend = open_backend()
    (lp,) = await backend.logprobs([make_row([5, 6], [7, 8], advantage=0.0)])
    shift = np.array([0, 0, 0.5, -0.5], np.float32)
    row = dataclasses.replace(make_row([5, 6], [7, 8], advantage=0.0), ref_logprobs=lp + shift)
    result = await backend.train_step([row], spec(kl_coef=2.0), ADAM)
    expected = np.exp(shift[2:]) - 1 - shift[2:]
    assert result.loss == pytest.approx(2.0 * expected.sum(), rel=1e-4)
    assert result.metrics["kl_reference"] == pytest.approx(expected.mean(), rel=1e-4)


async def test_training_raises_the_probability_of_what_was_rewarded(open_backend):
    for rank in (0, 8):
        backend = open_backend(lora_rank=rank)
        good, bad = make_row([5, 6, 7], [8, 9]), make_row([5, 6, 7], [10, 11], advantage=-1.0)
        before = [lp.sum() for lp in await backend.logprobs([good, bad])]
        for _ in range(5):
            await step([good, bad], spec(), AdamParams(lr=1e-3))(backend)
        after = [lp.sum() for lp in await backend.logprobs([good, bad])]
        assert after[0] > before[0]
        assert after[1] < before[1]


async def test_lora_trains_only_the_adapters_of_the_linear_layers_but_the_head(open_backend):
    backend = open_backend(lora_rank=4)
    policy = backend._engine._policy
    names = [n for n, p in policy.network.named_parameters() if p.requires_grad]
    assert len(names) == 2 * 7 * 2
    assert all(".lora_" in n and "lm_head" not in n for n in names)
    base = {n: p.clone() for n, p in policy.network.named_parameters() if not p.requires_grad}
    await step(random_rows(), spec(), ADAM)(backend)
    for n, p in policy.network.named_parameters():
        assert n not in base or torch.equal(p, base[n])


@pytest.mark.parametrize(
    "settings", [{}, {"lora_rank": 4}, {"precision": "bf16"}, {"lora_rank": 4, "precision": "bf16"}]
)
async def test_sampler_and_trainer_agree_before_and_after_an_update(settings, open_backend):
    backend = open_backend(**settings)
    for version in range(2):
        drawn = await backend.sampler().sample(Prompt([5, 6, 7, 8]), SamplingParams(max_tokens=20, seed=1), n=6)
        rows = [make_row([5, 6, 7, 8], c.ids, logprobs=c.logprobs) for c in drawn]
        assert all(c.versions.tolist() == [version] * len(c.ids) for c in drawn)
        found = await backend.logprobs(rows)
        gaps = np.concatenate([np.abs(lp - row.logprobs) for row, lp in zip(rows, found, strict=True)])
        assert gaps.max() < (1e-4 if "precision" not in settings else 0.5)
        assert gaps.mean() < (1e-5 if "precision" not in settings else 0.05)
        await step(rows, spec(), ADAM)(backend)
    assert backend.sampler().version == 2


async def test_bf16_keeps_float32_masters_and_is_close_to_float32(open_backend):
    exact, mixed = open_backend(), open_backend(precision="bf16")
    rows = random_rows()
    for backend in (exact, mixed):
        assert {p.dtype for p in backend._engine._policy.trainable()} == {torch.float32}
    for _ in range(3):
        results = [await step(rows, spec(), AdamParams(lr=1e-3))(b) for b in (exact, mixed)]
        assert results[1].grad_norm == pytest.approx(results[0].grad_norm, rel=0.1)
    a, b = await exact.logprobs(rows), await mixed.logprobs(rows)
    gap = np.concatenate([np.abs(x - y) for x, y in zip(a, b, strict=True)])
    assert 0 < gap.mean() < 0.2


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 4}, {"precision": "bf16"}])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
async def test_an_exported_folder_gives_the_trainers_logprobs_in_transformers(family, settings, open_backend, tmp_path):
    backend = open_backend(family, **settings)
    rows = random_rows()
    await step(rows, spec(), ADAM)(backend)
    await backend.export(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.chat_template == backend.model.tokenizer.chat_template
    atol = 5e-4 if "precision" not in settings else 0.5
    for row, own in zip(rows, await backend.logprobs(rows), strict=True):
        with torch.no_grad():
            np.testing.assert_allclose(own, reference_logprobs(model, row).numpy() * (row.mask != 0), atol=atol)
    again = open_backend(path=tmp_path / "model")
    if "precision" not in settings:
        for a, b in zip(await backend.logprobs(rows), await again.logprobs(rows), strict=True):
            np.testing.assert_allclose(a, b, atol=5e-4)
    await backend.train_step(rows, spec(), ADAM)


# --- refusals ---------------------------------------------------------------------------------------------------


async def test_nothing_is_drawn_between_a_training_step_and_its_publication(open_backend):
    backend = open_backend()
    await backend.train_step(random_rows(), spec(), ADAM)
    with pytest.raises(BackendError, match="publish"):
        await backend.sampler().sample(Prompt([5]), SamplingParams(max_tokens=1))
    with pytest.raises(BackendError, match="publish"):
        await backend.sampler().score(Prompt([5]))
    assert await backend.publish() == 1
    assert len(await backend.sampler().sample(Prompt([5]), SamplingParams(max_tokens=1))) == 1


async def test_rows_without_a_target_are_nothing_to_train(open_backend):
    with pytest.raises(NothingToTrainError, match="2 rows"):
        await open_backend().train_step([make_row([5, 6], [])] * 2, spec(), ADAM)


async def test_a_gradient_that_is_not_finite_leaves_the_weights_alone(open_backend):
    backend = open_backend()
    rows = random_rows()
    before = await backend.logprobs(rows)

    def broken(logprobs, inputs):
        return logprobs * float("nan"), {}

    with pytest.raises(BackendError, match="not finite"):
        await backend.train_step(rows, spec(broken), ADAM)
    for a, b in zip(before, await backend.logprobs(rows), strict=True):
        assert np.array_equal(a, b)
    await step(rows, spec(), ADAM)(backend)


async def test_a_loss_of_the_wrong_shape_is_named(open_backend):
    def summed(logprobs, inputs):
        return logprobs.sum(), {}

    with pytest.raises(ConfigError, match=r"'test' returned the losses of shape \(\)"):
        await open_backend().train_step(random_rows(), spec(summed), ADAM)


async def test_a_kl_term_without_reference_logprobs_is_refused(open_backend):
    with pytest.raises(ConfigError, match="reference logprobs"):
        await open_backend().train_step(random_rows(), spec(kl_coef=0.1), ADAM)


async def test_rows_of_which_some_lack_old_logprobs_are_refused(open_backend):
    rows = random_rows()
    rows[0] = dataclasses.replace(rows[0], old_logprobs=rows[0].logprobs)
    with pytest.raises(BackendError, match="old_logprobs"):
        await open_backend().train_step(rows, spec(), ADAM)


async def test_a_backend_for_sampling_does_not_train(open_backend):
    with pytest.raises(BackendError, match="sampling only"):
        await open_backend(trains=False).train_step(random_rows(), spec(importance_sampling), ADAM)
