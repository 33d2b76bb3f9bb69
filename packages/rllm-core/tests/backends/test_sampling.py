"""Drawing: what is drawn, with which logprobs, when it ends, and that the company does not matter."""

import asyncio
import time
from collections import Counter

import numpy as np
import pytest
import torch

from rllm.backends.local.drawing import draw_full, draw_modified, modified_logprobs
from rllm.errors import BackendError, ContextLengthError
from rllm.types import Prompt, SamplingParams

from .conftest import make_row


def prompt_of(n, seed=0, vocab=300):
    return Prompt(np.random.default_rng(seed).integers(3, vocab, n))


def same(a, b):
    """To the last bit."""
    return a.ids.tolist() == b.ids.tolist() and a.logprobs.tobytes() == b.logprobs.tobytes()


# --- the distribution -------------------------------------------------------------------------------------------


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


# --- company ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "threads"), [("llama", 1), ("llama", 2), ("gemma2", 1)])
async def test_a_completion_has_the_same_bits_alone_and_in_any_company(family, threads, open_backend):
    """Long and short, sharing prompts and beginnings or not, arriving together, one by one, and in another order."""
    sampler = open_backend(family, threads=threads, max_batch=24).sampler()
    stem = prompt_of(150, seed=9).ids
    jobs = []
    for k in range(10):
        own = np.concatenate([stem[: 15 * (k % 4) * (k % 3 + 1)], prompt_of(1 + 7 * k, seed=k // 2).ids])
        jobs.append((Prompt(own), SamplingParams(max_tokens=4 + 9 * (k % 5), seed=k, temperature=1.0 - 0.1 * (k % 2))))
    alone = [(await sampler.sample(*job))[0] for job in jobs]
    together = await asyncio.gather(*(sampler.sample(*job) for job in jobs))
    reverse = await asyncio.gather(*(sampler.sample(*job) for job in reversed(jobs)))

    async def late(k, job):
        await asyncio.sleep(0.004 * ((7 * k) % 10))
        return await sampler.sample(*job)

    staggered = await asyncio.gather(*(late(k, job) for k, job in enumerate(jobs)))
    for k, one in enumerate(alone):
        assert same(one, together[k][0]), k
        assert same(one, reverse[len(jobs) - 1 - k][0]), k
        assert same(one, staggered[k][0]), k


async def test_scores_have_the_bits_of_the_draws(open_backend):
    """Read at once or drawn one by one, a position's logprob is the same number."""
    sampler = open_backend().sampler()
    prompt = prompt_of(30)
    (drawn,) = await sampler.sample(prompt, SamplingParams(max_tokens=100, seed=3))
    scores = await sampler.score(Prompt(np.concatenate([prompt.ids, drawn.ids])))
    assert scores[30:].tobytes() == drawn.logprobs.tobytes()


async def test_a_group_in_one_call_starts_as_the_single_call_and_its_members_differ(open_backend):
    sampler = open_backend(max_batch=4).sampler()
    params = SamplingParams(max_tokens=12, seed=5)
    group = await sampler.sample(prompt_of(9), params, n=10)
    (single,) = await sampler.sample(prompt_of(9), params)
    assert same(group[0], single)
    assert len({tuple(c.ids) for c in group}) > 5


async def test_without_a_seed_every_call_draws_anew(open_backend):
    sampler = open_backend().sampler()
    params = SamplingParams(max_tokens=12)
    drawn = [(await sampler.sample(prompt_of(9), params))[0] for _ in range(4)]
    assert len({tuple(c.ids) for c in drawn}) == 4


async def test_trainer_and_sampler_agree_over_turns_and_with_joining_and_leaving_requests(open_backend):
    backend = open_backend(max_batch=6, prefill_tokens=64)
    sampler = backend.sampler()

    async def conversation(k):
        ids, rows = prompt_of(5 + k, seed=k % 3).ids, []
        for turn in range(4):
            params = SamplingParams(max_tokens=3 + (5 * k + turn) % 11, seed=100 * k + turn, temperature=0.8)
            (drawn,) = await sampler.sample(Prompt(ids), params)
            rows.append(make_row(ids, drawn.ids, logprobs=drawn.logprobs, temperature=0.8))
            ids = np.concatenate([ids, drawn.ids, prompt_of(2 + k % 5, seed=turn).ids])
        return rows

    rows = [row for rows in await asyncio.gather(*(conversation(k) for k in range(14))) for row in rows]
    gaps = [np.abs(lp - row.logprobs).max() for row, lp in zip(rows, await backend.logprobs(rows), strict=True)]
    assert max(gaps) < 1e-4


# --- ending -----------------------------------------------------------------------------------------------------


async def test_a_completion_ends_with_a_stop_id_or_at_its_length(open_backend):
    backend = open_backend()
    sampler = backend.sampler()
    assert backend.model.stop_ids == (backend.model.tokenizer.eos_token_id,)
    completions = await sampler.sample(prompt_of(4), SamplingParams(max_tokens=200, seed=0), n=40)
    reasons = Counter(c.finish_reason for c in completions)
    assert reasons["stop"] > 0
    assert reasons["length"] > 0
    for c in completions:
        ends = [k for k, token in enumerate(c.ids) if token in backend.model.stop_ids]
        assert ends == ([len(c.ids) - 1] if c.finish_reason == "stop" else [])
        assert c.finish_reason == "stop" or len(c.ids) == 200
        assert c.versions.tolist() == [0] * len(c.ids)


async def test_the_templates_end_of_turn_ends_a_completion_where_it_is_not_the_eos(
    open_backend, tiny_model_dir, tmp_path
):
    for file in tiny_model_dir.iterdir():
        text = file.read_bytes()
        if file.name in ("config.json", "generation_config.json", "tokenizer_config.json"):
            text = text.replace(b'"eos_token_id": 2', b'"eos_token_id": 0')
            text = text.replace(b'"eos_token": "<|im_end|>"', b'"eos_token": "<|endoftext|>"')
        (tmp_path / file.name).write_bytes(text)
    assert open_backend(path=tmp_path).model.stop_ids == (0, 2)


async def test_a_stop_string_ends_the_completion_and_keeps_its_ids(open_backend):
    backend = open_backend()
    decode = backend.model.tokenizer.decode
    (free,) = await backend.sampler().sample(prompt_of(4), SamplingParams(max_tokens=60, seed=4))
    text = decode(free.ids)
    stop = text[len(text) // 2 :][:3]
    (cut,) = await backend.sampler().sample(prompt_of(4), SamplingParams(max_tokens=60, seed=4, stop=(stop,)))
    assert cut.finish_reason == "stop"
    assert cut.ids.tolist() == free.ids[: len(cut.ids)].tolist()
    assert stop in decode(cut.ids)
    assert stop not in decode(cut.ids[:-1])


async def test_the_context_bounds_the_completion_and_refuses_the_prompt_that_fills_it(open_backend):
    backend = open_backend(context_tokens=20)
    sampler = backend.sampler()
    (c,) = await sampler.sample(prompt_of(17), SamplingParams(max_tokens=50, seed=1, frequency_penalty=0.1))
    assert len(c.ids) == 3 or c.finish_reason == "stop"
    (c,) = await sampler.sample(prompt_of(19), SamplingParams(max_tokens=50, seed=1))
    assert len(c.ids) == 1
    with pytest.raises(ContextLengthError, match="20 tokens"):
        await sampler.sample(prompt_of(20), SamplingParams())


async def test_ids_that_the_model_does_not_have_are_refused(open_backend):
    backend = open_backend()
    with pytest.raises(ValueError, match="another model's tokenizer"):
        await backend.sampler().sample(Prompt([1, backend.model.vocab_size]), SamplingParams())
    with pytest.raises(ValueError, match="empty"):
        await backend.sampler().sample(Prompt([]), SamplingParams())


# --- places -----------------------------------------------------------------------------------------------------


async def test_more_requests_than_places_are_all_served(open_backend):
    sampler = open_backend(max_batch=3, kv_cache_tokens=200).sampler()
    params = [SamplingParams(max_tokens=5 + k % 7, seed=k) for k in range(20)]
    crowded = await asyncio.gather(*(sampler.sample(prompt_of(3 + k), p) for k, p in enumerate(params)))
    alone = [await sampler.sample(prompt_of(3 + k), p) for k, p in enumerate(params)]
    assert all(same(a[0], b[0]) for a, b in zip(crowded, alone, strict=True))


def count_tokens(backend):
    """How many tokens each run of the model's body reads, from now on."""
    body, counts = backend._engine._policy.body, []
    run = body.run

    def run_and_count(tokens, positions, layout):
        counts.append(tokens.numel())
        return run(tokens, positions, layout)

    body.run = run_and_count
    return counts


async def test_a_group_is_read_once_and_is_one_row_while_its_members_agree(open_backend):
    backend = open_backend()
    counts = count_tokens(backend)
    prompts = [prompt_of(40), Prompt(np.concatenate([prompt_of(40).ids, [5, 6, 7, 8]]))]
    params = SamplingParams(max_tokens=4, temperature=0)
    gate = backend._thread.submit(lambda: time.sleep(0.2))
    drawn = await asyncio.gather(*(backend.sampler().sample(p, params) for p in prompts for _ in range(8)))
    gate.result()
    assert len({tuple(c.ids) for (c,) in drawn}) == 2
    assert counts == [44, 4, 4, 4]


async def test_a_group_that_trickles_in_is_not_read_again(open_backend):
    backend = open_backend()
    sampler, prompt = backend.sampler(), prompt_of(200)
    backend._engine._loop._stop_ids = frozenset()
    alone = [(await sampler.sample(prompt, SamplingParams(max_tokens=5, seed=k)))[0] for k in range(4)]
    counts = count_tokens(backend)
    first = asyncio.create_task(sampler.sample(prompt, SamplingParams(max_tokens=300)))
    while not counts:
        await asyncio.sleep(0.001)
    late = [(await sampler.sample(prompt, SamplingParams(max_tokens=5, seed=k)))[0] for k in range(4)]
    await first
    assert all(same(a, b) for a, b in zip(alone, late, strict=True))
    assert max(counts) <= 4, "the prompt was read before, and its keys and values kept"


async def test_a_conversations_next_turn_reads_only_what_is_new(open_backend):
    backend = open_backend()
    sampler, ids = backend.sampler(), prompt_of(100).ids
    backend._engine._loop._stop_ids = frozenset()
    counts = count_tokens(backend)
    for turn in range(3):
        (drawn,) = await sampler.sample(Prompt(ids), SamplingParams(max_tokens=6, seed=turn))
        ids = np.concatenate([ids, drawn.ids, prompt_of(39, seed=turn + 1).ids])
    # The last token of a completion is drawn, and read only when the next turn begins with it.
    assert [n for n in counts if n > 4] == [100, 40, 40]


async def test_a_long_prompt_is_read_in_pieces_while_others_are_being_drawn(open_backend):
    backend = open_backend(prefill_tokens=50)
    sampler = backend.sampler()
    backend._engine._loop._stop_ids = frozenset()
    running = asyncio.create_task(sampler.sample(prompt_of(4), SamplingParams(max_tokens=400, seed=1)))
    while backend._engine._loop.in_flight == 0:
        await asyncio.sleep(0.001)
    counts = count_tokens(backend)
    (pieces,) = await sampler.sample(prompt_of(330, seed=5), SamplingParams(max_tokens=8, seed=2))
    assert not running.done()
    first = counts.index(52)  # 50, in a multiple of 4
    assert counts[first : first + 13 : 2] == [52] * 6 + [32]
    assert set(counts[first + 1 : first + 13 : 2]) == {4}, "a token for everyone between two pieces"
    await running
    (whole,) = await open_backend().sampler().sample(prompt_of(330, seed=5), SamplingParams(max_tokens=8, seed=2))
    assert same(pieces, whole)


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3"])
async def test_pieces_kept_beginnings_and_a_cache_that_is_too_small_do_not_change_a_bit(family, open_backend):
    """Conversations that share a system prompt, of several lengths, all at once, under five regimes."""

    async def conversations(**settings):
        sampler = open_backend(family, **settings).sampler()

        async def one(k):
            ids, found = np.concatenate([prompt_of(45).ids, prompt_of(3 + 11 * k, seed=k).ids]), []
            for turn in range(3):
                await asyncio.sleep(0.002 * ((3 * k + turn) % 5))
                (drawn,) = await sampler.sample(Prompt(ids), SamplingParams(max_tokens=3 + 4 * turn + k, seed=k))
                found.append(drawn)
                ids = np.concatenate([ids, drawn.ids, prompt_of(7 + k, seed=turn).ids])
            return found

        return [c for found in await asyncio.gather(*(one(k) for k in range(6))) for c in found]

    whole = await conversations(max_batch=1, kv_cache_tokens=1)
    for settings in (
        {},
        {"prefill_tokens": 13},
        {"prefill_tokens": 32, "kv_cache_tokens": 500},
        {"prefill_tokens": 64, "kv_cache_tokens": 250, "max_batch": 3},
    ):
        assert all(same(a, b) for a, b in zip(whole, await conversations(**settings), strict=True)), settings


async def test_cancelling_a_call_frees_its_place(open_backend):
    backend = open_backend(max_batch=1)
    sampler = backend.sampler()
    endless = SamplingParams(max_tokens=500, seed=1, frequency_penalty=0.01)
    backend._engine._loop._stop_ids = frozenset()
    held = asyncio.create_task(sampler.sample(prompt_of(4), endless))
    waiting = asyncio.create_task(sampler.sample(prompt_of(5), endless))
    while backend._engine._loop.in_flight < 2:
        await asyncio.sleep(0.001)
    held.cancel()
    waiting.cancel()
    (c,) = await asyncio.wait_for(sampler.sample(prompt_of(6), SamplingParams(max_tokens=3)), 20)
    assert len(c.ids) == 3
    assert backend._thread.submit(lambda: backend._engine._loop.in_flight).result() == 0
    with pytest.raises(asyncio.CancelledError):
        await held


async def test_weights_do_not_change_under_a_completion_that_is_being_drawn(open_backend):
    backend = open_backend()
    backend._engine._loop._stop_ids = frozenset()
    running = asyncio.create_task(backend.sampler().sample(prompt_of(4), SamplingParams(max_tokens=500)))
    while backend._engine._loop.in_flight == 0:
        await asyncio.sleep(0.001)
    with pytest.raises(BackendError, match="completions are being drawn"):
        await backend.publish()
    await backend.close()
    (c,) = await running
    assert c.finish_reason == "aborted"
    assert 0 < len(c.ids) < 500
