"""A completion has the same bits whoever is served beside it, and what several share is computed once."""

import asyncio
import time

import numpy as np
import pytest

from rllm.types import Prompt, SamplingParams

from .conftest import make_row, prompt_of, same

# --- the same bits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "threads", "products"),
    [
        ("llama", 1, "torch"),
        ("llama", 2, "torch"),
        ("gemma2", 1, "torch"),
        ("llama", 1, "onednn"),
        ("llama", 2, "onednn"),
    ],
)
async def test_a_completion_has_the_same_bits_alone_and_in_any_company(family, threads, products, open_backend):
    """Long and short, sharing prompts and beginnings or not, arriving together, one by one, and in another order."""
    backend = open_backend(family, threads=threads, products=products, max_batch=24)
    if products == "onednn" and not backend._engine._policy.is_invariant:
        pytest.skip("this processor's oneDNN is not invariant, which the engine says")
    sampler = backend.sampler()
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


# --- shared work ------------------------------------------------------------------------------------------------


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
