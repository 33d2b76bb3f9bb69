"""What is drawn, and with which logprobs: the softmax, and the distributions that settings make of it."""

from collections import Counter

import numpy as np
import pytest
import torch

from rllm.backends.local.drawing import draw_full, draw_modified, modified_logprobs
from rllm.types import SamplingParams

from .conftest import prompt_of

# --- the softmax ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_draws_follow_the_softmax_at_the_temperature(temperature):
    """χ² of 40,000 draws from 8 tokens; its 0.999 quantile at 7 degrees of freedom is 24.3."""
    logits = torch.tensor([[2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -2.0, 3.0]])
    n = 40_000
    uniforms = np.random.default_rng(5).random(n)
    drawn = draw_full(logits, [0] * n, temperature, uniforms, [0] * n)
    expected = np.exp(logits[0].double().numpy() / temperature)
    expected *= n / expected.sum()
    counts = Counter(d.token for d in drawn)
    chi2 = sum((counts[k] - e) ** 2 / e for k, e in enumerate(expected))
    assert chi2 < 24.3
    for d in drawn[:50]:
        assert d.logprob == pytest.approx(np.log(expected[d.token] / n), abs=1e-5)


def test_the_inverse_cumulative_distribution_never_draws_what_has_probability_zero():
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]])
    uniforms = [0.0, 0.499999, 0.5, np.nextafter(1.0, 0.0)]
    drawn = draw_full(logits, [0] * 4, 1.0, uniforms, [0] * 4)
    assert [d.token for d in drawn] == [1, 1, 3, 3]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_completions_of_the_model_follow_its_own_softmax(temperature, open_backend):
    """First tokens over many seeds against the scores of the same engine, merged into bins of at least 10 expected."""
    backend = open_backend(max_batch=512)
    sampler, prompt, n = backend.sampler(), prompt_of(5), 4000
    drawn = await sampler.sample(prompt, SamplingParams(max_tokens=1, temperature=temperature, seed=11), n)
    hidden = backend._thread.submit(lambda: logits_after(backend, prompt)).result()
    p = torch.softmax(hidden.double() / temperature, -1).numpy()
    counts = np.bincount([c.ids[0] for c in drawn], minlength=len(p))
    order = np.argsort(-p)
    bins, held = [], [0.0, 0.0]
    for token in order:
        held = [held[0] + n * p[token], held[1] + counts[token]]
        if held[0] >= 10:
            bins.append(held)
            held = [0.0, 0.0]
    chi2 = sum((seen - e) ** 2 / e for e, seen in bins)
    k = len(bins) - 1
    assert k > 20
    assert chi2 < k + 4 * np.sqrt(2 * k)


@torch.no_grad()
def logits_after(backend, prompt):
    ids = torch.from_numpy(prompt.ids).long()[None]
    network = backend._engine._policy.network
    network.set_attn_implementation("eager")
    logits = network(input_ids=ids).logits[0, -1]
    network.set_attn_implementation("rllm")
    return logits


# --- the modified distributions ---------------------------------------------------------------------------------


def brute_force(logits, params, counts):
    """As the definitions say, token by token, in float64."""
    z = logits.double().numpy().copy()
    for token, times in counts.items():
        z[token] -= params.presence_penalty + params.frequency_penalty * times
    p = np.exp(z / params.temperature - (z / params.temperature).max())
    p /= p.sum()
    order = sorted(range(len(p)), key=lambda k: -p[k])
    if params.top_k:
        for token in order[params.top_k :]:
            p[token] = 0
        p /= p.sum()
    if params.top_p < 1:
        mass = 0.0
        for token in order:
            if mass >= params.top_p:
                p[token] = 0
            else:
                mass += p[token]
        p /= p.sum()
    if params.min_p:
        p[p < params.min_p * p.max()] = 0
        p /= p.sum()
    return p


@pytest.mark.parametrize(
    "settings",
    [
        {"top_k": 3},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"top_k": 7, "top_p": 0.8, "min_p": 0.05, "temperature": 0.7},
        {"presence_penalty": 0.5, "frequency_penalty": 0.25},
    ],
)
def test_cut_and_bent_distributions_are_what_their_definitions_say(settings):
    params = SamplingParams(**settings)
    logits = torch.randn(12, generator=torch.Generator().manual_seed(2)) * 2
    counts = {1: 2, 5: 1}
    got = modified_logprobs(logits, params, counts).double().exp().numpy()
    np.testing.assert_allclose(got, brute_force(logits, params, counts), atol=1e-6)


def test_greedy_takes_the_likeliest_and_reports_its_probability_at_temperature_one():
    logits = torch.tensor([0.0, 2.0, 1.0])
    drawn = draw_modified(logits, SamplingParams(temperature=0, top_logprobs=2), {}, 0.999)
    expected = torch.log_softmax(logits, -1)
    assert drawn.token == 1
    assert drawn.logprob == pytest.approx(float(expected[1]))
    assert [token for token, _ in drawn.top] == [1, 2]


async def test_what_is_not_the_full_softmax_is_marked_modified(open_backend):
    sampler = open_backend().sampler()
    for params, kind in ((SamplingParams(max_tokens=2), "full"), (SamplingParams(max_tokens=2, top_p=0.9), "modified")):
        (completion,) = await sampler.sample(prompt_of(4), params)
        assert completion.distribution == kind


async def test_a_frequency_penalty_counts_what_this_completion_has_drawn(open_backend):
    sampler = open_backend().sampler()
    plain, bent = [
        (await sampler.sample(prompt_of(4), SamplingParams(max_tokens=60, temperature=0, frequency_penalty=f)))[0]
        for f in (0.0, 2.0)
    ]
    assert max(Counter(bent.ids.tolist()).values()) <= max(Counter(plain.ids.tolist()).values())
    assert bent.ids.tolist() != plain.ids.tolist()


async def test_top_logprobs_come_best_first_and_hold_the_drawn_one_if_it_is_among_them(open_backend):
    (c,) = await open_backend().sampler().sample(prompt_of(4), SamplingParams(max_tokens=20, top_logprobs=5, seed=1))
    assert len(c.top_logprobs) == len(c.ids)
    for token, logprob, tops in zip(c.ids, c.logprobs, c.top_logprobs, strict=True):
        values = [v for _, v in tops]
        assert values == sorted(values, reverse=True)
        assert dict(tops).get(int(token), logprob) == logprob
        assert logprob <= values[0]
