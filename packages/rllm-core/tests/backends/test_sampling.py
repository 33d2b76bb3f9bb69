"""When a completion ends, what may be asked, and what happens to a call that is cancelled."""

import asyncio
from collections import Counter

import pytest

from rllm.errors import BackendError, ContextLengthError
from rllm.types import Prompt, SamplingParams

from .conftest import prompt_of


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
