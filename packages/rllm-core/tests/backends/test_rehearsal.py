"""What ``--dry-run`` says of the engine, against the engine with its weights."""

import shutil

import pytest

from rllm.backends.builtin import embedded_engine, rehearse_engine
from rllm.backends.local import rehearsal
from rllm.backends.local.room import measure_saved
from rllm.protocols import BackendRequest, Workload

LOAD = Workload(rows=4, prompts=2, prompt_tokens=10, completion_tokens=6, validation_rows=3)


def request(folder, rank: int = 0) -> BackendRequest:
    return BackendRequest(
        model_name="m", model_path=str(folder), seed=0, lora_rank=rank, lora_alpha=8.0, settings=None, trains=True
    )


@pytest.mark.parametrize(
    ("family", "rank"),
    [
        ("llama", 0),
        ("llama", 4),
        ("qwen2", 0),
        ("gemma2", 0),
        ("gpt2", 0),
        ("mamba", 0),
        ("bloom", 0),
        ("gpt_oss", 0),
        ("gemma3", 0),
    ],
)
async def test_it_counts_what_the_engine_holds_and_reads_no_weights(model_folder, tmp_path, family, rank):
    folder = tmp_path / "unread"
    shutil.copytree(model_folder(family), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    found = rehearse_engine(request(folder, rank))
    estimate = found.estimate(LOAD)
    backend = embedded_engine(request(model_folder(family), rank))
    try:
        policy = backend._engine._policy
        n_base = sum(p.numel() for p in policy.network.parameters()) - rank_parameters(policy, rank)
        trained = sum(p.numel() for p in policy.trainable())
        assert found.capabilities == backend.capabilities
        assert (found.model.context_tokens, found.model.stop_ids) == (512, backend.model.stop_ids)
        assert (estimate.n_parameters, estimate.n_trained) == (n_base, trained)
        assert estimate.memory["optimizer"] == 8 * trained
        costs = found._measured(2, LOAD)
        assert costs.kv_bytes == policy.kv_bytes_per_token
        assert costs.saved_bytes == measure_saved(policy, found._settings)
    finally:
        await backend.close()


def rank_parameters(policy, rank: int) -> int:
    return sum(p.numel() for p in policy.trainable()) if rank else 0


def test_layers_that_are_left_out_are_counted_up(monkeypatch):
    """Of the three layers of rllm-tiny, one and two are looked at."""
    from rllm.models import resolve_model

    monkeypatch.setattr(rehearsal, "SLICE_BYTES", 1)
    found = rehearse_engine(request(resolve_model("rllm-tiny").path))
    estimate = found.estimate(LOAD)
    assert estimate.n_trained == estimate.n_parameters == 738_176
    assert "with 1 and 2 of the model's 3 layers" in estimate.basis
    whole = found._measured(3, LOAD)
    grown = found._measured(1, LOAD).grown(found._measured(2, LOAD), 2, 3)
    assert (grown.kv_bytes, grown.trained) == (whole.kv_bytes, whole.trained)
    assert grown.saved_bytes == pytest.approx(whole.saved_bytes, rel=0.02)
    assert estimate.seconds.keys() == {"rollouts", "updates", "validation"}
