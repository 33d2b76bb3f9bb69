"""What goes wrong ends in one clear error, and nobody is left waiting."""

import asyncio
import json
import subprocess
import sys

import pytest

from rllm.backends.builtin import embedded_engine
from rllm.backends.local.backend import LocalBackend
from rllm.backends.local.settings import TinkerSettings
from rllm.errors import BackendError, ConfigError, ModelError
from rllm.plugins import PluginManager
from rllm.protocols import BackendRequest
from rllm.types import Prompt, SamplingParams

from .conftest import random_rows, spec


def request(path, **changes):
    fields = {"model_name": "m", "model_path": str(path), "seed": 0, "lora_rank": 0, "lora_alpha": 0.0}
    return BackendRequest(**fields | {"settings": TinkerSettings(threads=1, device="cpu")} | changes)


def break_after(backend, calls):
    """The engine's forward fails from its so-manieth call on, as a driver or the memory might."""
    body, left = backend._engine._policy.body, [calls]
    run = body.run

    def run_or_fail(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("out of memory, say")
        return run(*arguments)

    body.run = run_or_fail


@pytest.mark.parametrize("calls", [0, 1, 3])
async def test_when_the_engine_dies_all_pending_and_later_calls_fail_with_its_cause(calls, open_backend):
    backend = open_backend(max_batch=2)
    sampler = backend.sampler()
    break_after(backend, calls)
    jobs = [sampler.sample(Prompt([5, 6, 7 + k]), SamplingParams(max_tokens=50, seed=k)) for k in range(6)]
    outcomes = await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), 20)
    failed = [o for o in outcomes if isinstance(o, BaseException)]
    assert failed
    for error in failed:
        assert isinstance(error, BackendError)
        assert "out of memory, say" in str(error)
    for late in (
        sampler.sample(Prompt([5]), SamplingParams()),
        sampler.score(Prompt([5, 6])),
        backend.train_step(random_rows(), spec(), None),
        backend.publish(),
        backend.logprobs(random_rows()),
    ):
        with pytest.raises(BackendError, match="out of memory, say"):
            await asyncio.wait_for(late, 20)


async def test_an_error_in_a_call_is_its_callers_alone(open_backend):
    backend = open_backend()

    def broken(logprobs, inputs):
        raise ZeroDivisionError("in the loss")

    with pytest.raises(ZeroDivisionError, match="in the loss"):
        await backend.train_step(random_rows(), spec(broken), None)
    assert len(await backend.sampler().sample(Prompt([5]), SamplingParams(max_tokens=1))) == 1


async def test_a_closed_backend_says_so_and_closes_twice(open_backend):
    backend = open_backend()
    await backend.close()
    await backend.close()
    with pytest.raises(BackendError, match="closed"):
        await backend.sampler().sample(Prompt([5]), SamplingParams())


def test_calls_work_from_any_event_loop(tiny_model_dir):
    backend = LocalBackend(request(tiny_model_dir))
    try:
        params = SamplingParams(max_tokens=5, seed=1)
        drawn = [asyncio.run(backend.sampler().sample(Prompt([5, 6]), params))[0] for _ in range(2)]
        assert drawn[0].ids.tolist() == drawn[1].ids.tolist()
    finally:
        asyncio.run(backend.close())


def test_a_program_that_ends_in_mid_draw_without_closing_ends_well(tiny_model_dir):
    program = f"""
import asyncio, torch
from rllm.backends.local.backend import LocalBackend
from rllm.backends.local.settings import TinkerSettings
from rllm.protocols import BackendRequest
from rllm.types import Prompt, SamplingParams

async def main():
    asyncio.create_task(backend.sampler().sample(Prompt([5, 6]), SamplingParams(max_tokens=400)))
    await asyncio.sleep(0.05)

backend = LocalBackend(BackendRequest("m", {str(tiny_model_dir)!r}, 0, 0, 0.0, TinkerSettings(device="cpu", threads=1)))
backend._engine._loop._stop_ids = frozenset()
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_folder_that_is_no_model_is_refused_with_what_it_needs(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json"):
        LocalBackend(request(tmp_path))


def test_a_model_without_its_weights_is_refused_with_what_it_needs(tmp_path, tiny_model_dir):
    for file in tiny_model_dir.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        LocalBackend(request(tmp_path))


def test_a_quantised_model_is_refused_by_its_method(tmp_path, tiny_model_dir):
    for file in tiny_model_dir.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"quantised \(gptq\)"):
        LocalBackend(request(tmp_path))


def test_an_unknown_name_is_refused_with_where_it_was_looked_for(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="hub"):
        LocalBackend(request("nobody/nothing-of-the-kind"))


def test_a_context_longer_than_the_models_is_refused(tiny_model_dir):
    with pytest.raises(ModelError, match="the model's context is 512"):
        LocalBackend(request(tiny_model_dir, settings=TinkerSettings(context_tokens=513)))


def test_a_device_that_is_not_there_is_refused(tiny_model_dir, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ModelError, match=r"tinker\.device=cuda"):
        LocalBackend(request(tiny_model_dir, settings=TinkerSettings(device="cuda")))


async def test_logprobs_of_something_else_are_refused(open_backend):
    with pytest.raises(ConfigError, match="'current' or 'reference'"):
        await open_backend().logprobs([], of="last")


async def test_it_is_registered_as_tinker_with_its_settings(tiny_model_dir):
    item = PluginManager(load_installed=False).get("backend", "tinker")
    assert item.value is embedded_engine
    assert item.settings is TinkerSettings
    backend = item.value(request(tiny_model_dir))
    assert backend.model.context_tokens == 512
    await backend.close()
