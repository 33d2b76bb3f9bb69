"""Supervised fine-tuning: what is learnt is what an assistant says, and a reinforced run goes on from there."""

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import rllm
from rllm.config import SftConfig
from rllm.configure import resolve_config
from rllm.plugins import get_plugins
from rllm.train.sft import sft

from .conftest import run_command

CITIES = ("Paris", "Lima", "Oslo", "Rome", "Cairo", "Quito", "Accra", "Dakar")


def chats(n: int) -> list[dict]:
    """Conversations of one and two turns, with answers that the model can't know."""
    found = []
    for k in range(n):
        messages = [
            {"role": "user", "content": f"Who lives at number {k}?"},
            {"role": "assistant", "content": f"{CITIES[k % 8]} {k * 37 % 100}"},
        ]
        if k % 2:
            messages += [{"role": "user", "content": "Again?"}, {"role": "assistant", "content": CITIES[k % 8]}]
        found.append({"messages": messages})
    return found


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, records: list[dict]) -> None:
    Path(name).write_text("\n".join(map(json.dumps, records)) + "\n")


async def tune(**settings):
    layer = {"model": "rllm-tiny", "run_dir": "run"} | {k.replace("__", "."): v for k, v in settings.items()}
    return await sft(resolve_config(SftConfig, [layer], get_plugins()), get_plugins())


async def test_it_overfits_32_conversations_and_the_model_says_them(here):
    write("chats.jsonl", chats(32))
    result = await tune(data="chats.jsonl", held_out=0.0, epochs=60, optimizer__lr=1e-3)
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    losses = [line["update/loss"] for line in lines if "update/loss" in line]
    assert losses[0] > 2
    assert sum(losses[-4:]) / 4 < 0.05
    model = AutoModelForCausalLM.from_pretrained(result.model_dir)
    tokenizer = AutoTokenizer.from_pretrained(result.model_dir)
    right = 0
    for chat in chats(32):
        ids = tokenizer.apply_chat_template(
            chat["messages"][:1], add_generation_prompt=True, return_tensors="pt", return_dict=False
        )
        said = model.generate(ids, max_new_tokens=24, do_sample=False)[0, ids.shape[1] :]
        right += tokenizer.decode(said, skip_special_tokens=True).strip() == chat["messages"][1]["content"]
    assert right >= 30


async def test_the_first_loss_is_that_of_transformers_over_the_replies_tokens(here):
    """By the template's own text and the model's own labels, in one batch of all."""
    write("chats.jsonl", chats(6))
    await tune(data="chats.jsonl", held_out=0.0, steps=1, batch_size=6, run_dir="run")
    (line,) = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    from rllm.models import resolve_model

    path = resolve_model("rllm-tiny").path
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    total, count = 0.0, 0
    for chat in chats(6):
        messages = chat["messages"]
        for n in range(1, len(messages), 2):
            prompt = tokenizer.apply_chat_template(messages[:n], add_generation_prompt=True, tokenize=False)
            whole = tokenizer.apply_chat_template(messages[: n + 1], tokenize=False)
            before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
            reply = tokenizer(whole[len(prompt) :], add_special_tokens=False)["input_ids"]
            reply = reply[: reply.index(tokenizer.eos_token_id) + 1]
            ids = torch.tensor([[*before, *reply]])
            labels = torch.tensor([[-100] * len(before) + reply])
            with torch.no_grad():
                total += float(model(input_ids=ids, labels=labels).loss) * len(reply)
            count += len(reply)
    assert line["update/target_tokens"] == count
    assert line["update/loss"] == pytest.approx(total / count, rel=1e-4)


async def test_a_run_goes_on_from_its_checkpoint_to_the_same_weights(here):
    write("chats.jsonl", chats(16))
    common = {"data": "chats.jsonl", "epochs": 2, "batch_size": 4, "optimizer__lr": 1e-3}
    await tune(**common, run_dir="whole")
    await tune(**common, run_dir="parts", steps=3)
    run_command(here, "sft", "--resume", "parts", "steps=8")
    weights = [Path(name, "model/model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert weights[0] == weights[1]
    said = run_command(here, "run", "list", ".")
    assert "chats.jsonl" in said
    write("chats.jsonl", chats(15))
    said = run_command(here, "sft", "--resume", "parts", "steps=9", code=1)
    assert "the file of conversations (a checksum) was" in said


async def test_it_is_a_warm_start(here):
    """Shown what a right answer looks like, a reinforced run begins where one without had to get to."""

    def grade(task, episode):
        return float(episode.output.strip() == task.answer)

    tasks = [rllm.Task(id=str(n), prompt=f"Code of {n}?", answer=f"#{n}") for n in range(24)]
    shown = [{"prompt": t.prompt, "answer": t.answer} for t in tasks[:12]]
    write("shown.jsonl", shown)
    tuned = await tune(data="shown.jsonl", held_out=0.0, epochs=30, optimizer__lr=2e-3)
    rewards = {}
    for name, model in (("cold", "rllm-tiny"), ("warm", tuned.model_dir)):
        trainer = rllm.AgentTrainer(
            tasks=tasks,
            evaluator=grade,
            model=model,
            settings={"steps": 1, "validation.limit": 0, "sampling.max_tokens": 8, "run_dir": name},
        )
        await trainer.train_async()
        lines = [json.loads(line) for line in Path(name, "metrics.jsonl").read_text().splitlines()]
        rewards[name] = next(line["reward/mean"] for line in lines if "reward/mean" in line)
    assert rewards["warm"] > rewards["cold"] + 0.3


async def test_the_held_out_loss_is_told_before_and_after_and_equal_conversations_stay_together(here):
    write("chats.jsonl", chats(20) * 2)
    result = await tune(data="chats.jsonl", held_out=0.25, steps=2)
    assert result.before is not None
    assert math.isfinite(result.after)
    from rllm.rendering import Renderer
    from rllm.train.conversations import conversations_of

    tokenizer = AutoTokenizer.from_pretrained(result.model_dir)
    train, held_out = conversations_of("chats.jsonl", Renderer(tokenizer, context_tokens=512), held_out=0.25, seed=0)
    assert (len(train), len(held_out)) == (30, 10)
    assert not {c.key for c in train} & {c.key for c in held_out}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"messages": []}', 'chats.jsonl line 2: "messages" is []; it must be a list'),
        ('{"messages": [{"role": "user", "content": "hi"}]}', "line 2: no message is an assistant's"),
        ('{"messages": ["hi"]}', "line 2: message 0 is 'hi'; it must have a \"role\""),
        ('{"question": "hi", "answer": "ho"}', "line 2: it has the fields ['answer', 'question']"),
        ("no", "line 2: it is no JSON"),
        (
            json.dumps({"prompt": "hi", "answer": "ho " * 9000}),
            "line 2: ",
        ),
    ],
)
def test_what_can_not_be_learnt_is_named_by_its_line(here, line, message):
    Path("chats.jsonl").write_text(json.dumps(chats(1)[0]) + "\n" + line + "\n")
    said = run_command(here, "sft", "chats.jsonl", "--model", "rllm-tiny", code=1)
    assert message in said
    assert "Traceback" not in said


def test_a_loss_without_rewards_is_refused_in_a_reinforced_run(here):
    said = run_command(here, "train", "chain_sum", "--model", "rllm-tiny", "loss=cross_entropy", code=1)
    assert "loss=cross_entropy takes no notice of rewards" in said
    assert "rllm sft" in said
