"""What a run leaves behind is the model that was trained: others that load it give its tokens the same logprobs."""

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

import rllm.trace


def trained_steps(run_dir: str) -> list:
    """The model calls of the validation after training: drawn with the final weights."""
    with rllm.trace.TraceStore(Path(run_dir, "traces.sqlite")) as store:
        steps = [step for episode in store.episodes() for step in episode.steps]
    last = max(version for step in steps for version in step.versions)
    return [step for step in steps if set(step.versions) == {last}]


@torch.no_grad()
def gap(model, steps: list) -> float:
    """The greatest difference in nats between a model's logprobs and those that the run recorded."""
    gaps = []
    for step in steps:
        ids = torch.tensor([[*step.added_ids, *step.completion_ids]])
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0, :-1].float(), -1)
        own = logprobs.gather(-1, ids[0, 1:, None])[-len(step.completion_ids) :, 0]
        gaps.append(float((own - torch.tensor(step.logprobs)).abs().max()))
    return max(gaps)


def test_a_full_run_leaves_its_model(run):
    result = run(steps=2, validation__limit=8)
    steps = trained_steps("run")
    assert len(steps) == 8
    assert gap(AutoModelForCausalLM.from_pretrained(result.model_dir), steps) < 1e-4
    assert not Path("run/adapter").exists()


@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing`:FutureWarning"
)  # peft uses the name of transformers 5.5
def test_a_lora_run_leaves_the_merged_model_and_the_adapter(run):
    result = run(steps=2, validation__limit=8, lora__rank=4, optimizer__lr=1e-2, optimizer__warmup_steps=0)
    steps = trained_steps("run")
    assert gap(AutoModelForCausalLM.from_pretrained(result.model_dir), steps) < 1e-4
    begun_with = json.loads(Path("run/adapter/adapter_config.json").read_text())["base_model_name_or_path"]
    base = AutoModelForCausalLM.from_pretrained(begun_with)
    assert gap(base, steps) > 1e-3, "the run has changed it"
    assert gap(PeftModel.from_pretrained(base, "run/adapter"), steps) < 1e-4


@pytest.mark.parametrize("rank", [0, 4])
def test_an_exported_model_is_where_the_next_run_begins(rank, run):
    result = run(steps=1, run_dir="first", lora__rank=rank)
    again = run(steps=1, run_dir="second", model=result.model_dir, lora__rank=rank)
    assert again.before.reward == result.after.reward
