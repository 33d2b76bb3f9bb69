"""How the engine fits itself to the machine: precision, threads, determinism and memory, by measurement or as asked."""

import numpy as np
import pytest
import torch

from rllm.backends.local import machine, room, starting
from rllm.errors import ConfigError
from rllm.protocols import AdamParams
from rllm.update.packing import pack

from .conftest import make_row, random_rows, spec
from .test_forward import assert_same_gradient, engine_gradient


def mixed_layers(backend):
    return [m for m in backend._engine._policy.network.modules() if type(m).__name__ == "MixedLinear"]


@pytest.mark.parametrize(("gain", "takes_bf16"), [(2.1, True), (0.4, False)])
async def test_bf16_is_taken_where_it_pays(gain, takes_bf16, open_backend, monkeypatch, caplog):
    caplog.set_level("INFO", "rllm.backends")
    monkeypatch.setattr(starting, "bf16_gain", lambda width, multiply: gain)
    monkeypatch.setattr(starting, "SMALL_WIDTH", 0)
    backend = open_backend()
    assert bool(mixed_layers(backend)) == takes_bf16
    assert backend.capabilities.exact == (not takes_bf16)
    assert f"{gain:.1f} times as fast" in caplog.text
    assert ("bf16 products" if takes_bf16 else "fp32, ") in caplog.text


def onednn_layers(backend):
    return [m for m in backend._engine._policy.network.modules() if type(m).__name__ == "OneDnnLinear"]


@pytest.mark.parametrize(("gain", "takes_onednn"), [(2.1, True), (1.1, False), (0.0, False)])
async def test_onednn_is_taken_where_it_pays(gain, takes_onednn, open_backend, monkeypatch, caplog):
    caplog.set_level("INFO", "rllm.backends")
    monkeypatch.setattr(starting, "onednn_gain", lambda width: gain)
    monkeypatch.setattr(starting, "is_even", lambda multiply, weights: True)
    monkeypatch.setattr(starting, "SMALL_WIDTH", 0)
    assert bool(onednn_layers(open_backend(precision="fp32"))) == takes_onednn
    assert f"oneDNN multiplies fp32 {gain:.1f} times as fast" in caplog.text
    assert ("fp32, oneDNN" in caplog.text) == takes_onednn


@pytest.mark.skipif(machine.onednn_gain(64, repeats=1) == 0, reason="this torch has no oneDNN")
@pytest.mark.parametrize("lora_rank", [0, 4])
async def test_onednn_is_taken_where_the_company_would_change_torchs_bits(lora_rank, open_backend, monkeypatch, caplog):
    caplog.set_level("INFO", "rllm.backends")
    seen = []
    monkeypatch.setattr(starting, "is_even", lambda multiply, weights: seen.extend(weights))
    backend = open_backend(lora_rank=lora_rank)
    assert {w.shape for w in seen} == {m.weight.shape for m in onednn_layers(open_backend())} | {(320, 32)}
    assert "torch's own products give a row other bits in other company here" in caplog.text
    network = backend._engine._policy.network
    assert {type(m).__name__ for n, m in network.named_modules() if n.endswith("lora_B.default")} <= {"OneDnnLinear"}
    assert not onednn_layers(open_backend(deterministic=False))


def test_evenness_is_tried_row_by_row():
    def rounded_when_few(x, weight):
        return (x @ weight.t()).round(decimals=2 if len(x) < 20 else 6)

    weights = [torch.ones(8, 32), torch.ones(64, 16)]
    assert machine.is_even(lambda x, w: (x[:, None] * w).sum(-1), weights)
    assert not machine.is_even(rounded_when_few, weights)


async def test_products_are_as_asked_and_refused_where_there_are_none(open_backend, monkeypatch):
    assert not onednn_layers(open_backend(products="torch"))
    assert onednn_layers(open_backend(products="onednn", precision="fp32"))
    monkeypatch.setattr(starting, "onednn_gain", lambda width: 0.0)
    with pytest.raises(ConfigError, match=r"tinker\.products=onednn, but there is no oneDNN for cpu"):
        open_backend(products="onednn")


async def test_what_is_asked_for_is_not_measured(open_backend, monkeypatch):
    monkeypatch.setattr(starting, "bf16_gain", None)
    assert not mixed_layers(open_backend(precision="fp32"))
    assert mixed_layers(open_backend(precision="bf16"))


def test_the_gain_of_bf16_is_measured_in_turns(monkeypatch):
    seconds = iter([0.3, 0.1, 0.2, 0.4, 0.9, 0.5])
    monkeypatch.setattr(machine, "_seconds", lambda run: (run(), next(seconds))[1])
    assert machine.bf16_gain(64, repeats=3) == pytest.approx(0.2 / 0.1)


@pytest.mark.parametrize(("tiny", "threads"), [(10**9, 1), (0, 3)])
async def test_tiny_models_take_one_thread_and_others_all_cores(tiny, threads, open_backend, monkeypatch):
    monkeypatch.setattr(starting, "TINY_PARAMETERS", tiny)
    monkeypatch.setattr(starting, "cores", lambda: 3)
    backend = open_backend(threads=None)
    assert backend._thread.submit(torch.get_num_threads).result() == threads


# --- determinism ------------------------------------------------------------------------------------------------


async def test_a_model_whose_bits_depend_on_the_company_is_refused_where_determinism_is_asked_for(open_backend, caplog):
    caplog.set_level("INFO", "rllm.backends")
    open_backend("llama", deterministic=True)
    assert "the same bits in any company" in caplog.text
    open_backend("gpt_oss")
    assert "not deterministic: the layers of gpt_oss" in caplog.text
    for family in ("gpt_oss", "bloom"):
        with pytest.raises(ConfigError, match=r"tinker\.deterministic=true, but the layers of"):
            open_backend(family, deterministic=True, context_tokens=64)


async def test_the_same_steps_give_the_same_weights_to_the_last_bit(open_backend):
    """With two threads, in whatever order they come."""
    found = []
    for _ in range(2):
        backend = open_backend(threads=2, micro_batch_tokens=40)
        for seed in range(3):
            await backend.train_step(random_rows(seed=seed), spec(), AdamParams(lr=1e-3))
            await backend.publish()
        found.append({n: p.detach().clone() for n, p in backend._engine._policy.network.named_parameters()})
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


# --- memory -----------------------------------------------------------------------------------------------------


def test_what_a_forward_keeps_is_counted_once_and_without_its_parameters():
    linear = torch.nn.Linear(8, 8)
    x = torch.ones(4, 8)
    kept = machine.saved_bytes(lambda: torch.sigmoid(linear(x)) ** 2, list(linear.parameters()))
    # x for the weight's gradient, the sigmoid's result (by itself and by the square): 4 × 8 float32 each.
    assert kept == 2 * 4 * 8 * 4


async def test_rows_that_do_not_fit_are_computed_in_smaller_batches_and_again_in_the_backward(
    open_backend, monkeypatch
):
    rows = [*random_rows(), make_row(np.arange(3, 90), np.arange(90, 110))]
    whole, _ = await engine_gradient(open_backend(), rows, spec())
    # A token of this model keeps 3 kB, weights and optimizer take 0.4 MB: half of this has room for about 40.
    monkeypatch.setattr(room, "total_memory", lambda device: 1_000_000)
    backend = open_backend()
    runs = []
    backend._engine._policy.network.base_model.layers[0].self_attn.register_forward_pre_hook(
        lambda module, _: runs.append(module.training)
    )
    small, _ = await engine_gradient(backend, rows, spec())
    assert_same_gradient(small, whole, rtol=1e-5)
    tokens = backend._engine._trainer._room.micro_batch_tokens
    assert 10 < tokens < 100
    n_batches = len(pack(rows, tokens))
    assert n_batches >= 4
    assert runs.count(True) == 1, "the long row's forward"
    assert len(runs) == 1 + n_batches + 1, "the probe, each micro-batch, and the long one again in its backward"


async def test_memory_is_that_of_the_machine_or_what_the_process_may_have(tmp_path, monkeypatch):
    whole = machine.total_memory(torch.device("cpu"))
    assert whole > 2**28
    limit = tmp_path / "memory.max"
    limit.write_text("1234567\n")
    monkeypatch.setattr(machine, "Path", lambda _: limit)
    assert machine.total_memory(torch.device("cpu")) == 1234567
    limit.write_text("max\n")
    assert machine.total_memory(torch.device("cpu")) >= whole
