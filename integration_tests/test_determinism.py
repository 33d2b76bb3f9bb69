"""Two runs of one seed give the same weights to the last bit, however their agents' calls happen to arrive."""

import asyncio
import random
from pathlib import Path

from openai import AsyncOpenAI

import rllm


async def ask(client, *texts):
    await asyncio.sleep(random.random() * 0.03)
    messages = [{"role": "user", "content": text} for text in texts]
    reply = await client.chat.completions.create(model="policy", messages=messages)
    return reply.choices[0].message.content


@rllm.rollout
async def solve(task):
    """Three helpers at once, each of two turns, then one who has heard them all; with delays that no seed rules."""
    async with AsyncOpenAI() as client:

        async def helper(k):
            first = await ask(client, f"Helper {k}: {task.prompt}")
            return await ask(client, f"Helper {k}: {task.prompt}", f"You said {first}. Are you sure?")

        heard = await asyncio.gather(*(helper(k) for k in range(3)))
        return await ask(client, task.prompt + " Helpers said: " + " | ".join(heard))


def grade(task, episode):
    return (sum(map(ord, episode.output)) % 7) / 7


def weights(run, name, **settings) -> bytes:
    result = run(agent=solve, evaluator=grade, run_dir=name, tinker__deterministic=True, **settings)
    return Path(result.model_dir, "model.safetensors").read_bytes()


def test_parallel_sub_agents_random_delays_and_a_small_cache_do_not_change_a_bit(run):
    first = weights(run, "first")
    again = weights(run, "again")
    crowded = weights(run, "crowded", tinker__kv_cache_tokens=400, tinker__prefill_tokens=40, tinker__max_batch=5)
    assert first == again
    assert first == crowded
    assert first != weights(run, "other", seed=1)
