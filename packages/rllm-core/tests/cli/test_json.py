"""``--json``: one document on stdout, whatever else is printed; and ``--dry-run``, which does nothing but say."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from rllm.cli import main
from rllm.models import resolve_model

AGENT = """
from openai import AsyncOpenAI
print("loaded")
async def solve(task):
    print("an agent that prints")
    async with AsyncOpenAI() as client:
        messages = [{"role": "user", "content": task.prompt}]
        reply = await client.chat.completions.create(model="policy", messages=messages)
    return reply.choices[0].message.content
"""
TRAIN = ["train", "chain_sum", "--model", "rllm-tiny", "steps=1", "batch_tasks=2", "group_size=2", "validation.limit=4"]
SMALL = [*TRAIN, "sampling.max_tokens=8"]


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("here")


@pytest.fixture
def rllm_says(here, monkeypatch, capsys):
    """``rllm_says(…)``: stdout of a command in this process, in a folder that the module's tests share."""
    monkeypatch.chdir(here)
    monkeypatch.setenv("RLLM_HOME", str(here / "home"))
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["rllm", *arguments])
        found = 0
        try:
            main()
        except SystemExit as ended:
            found = ended.code
        out, errors = capsys.readouterr()
        assert found == code, errors
        return out

    return call


@pytest.fixture
def document(rllm_says):
    def call(*arguments: str, code: int = 0):
        return json.loads(rllm_says(*arguments, "--json", code=code))

    return call


def test_lists_and_what_is_shown_of_one(document):
    tasks = {task["name"]: task for task in document("task", "list")}
    assert tasks["chain_sum"].keys() == {"name", "summary", "plugin"}
    shown = document("task", "show", "chain_sum", "chain_sum.max_digits=2")
    assert (shown["train"], shown["held_out"], shown["settings"]["max_digits"]) == (136, 64, 2)
    assert shown["example"]["prompt"]
    models = {model["name"]: model for model in document("model", "list")}
    assert models["rllm-tiny"] == document("model", "show", "rllm-tiny")
    assert (models["smollm2-135m"]["path"], models["rllm-tiny"]["path"]) == (None, resolve_model("rllm-tiny").path)
    plugins = document("plugin", "list")
    assert "rllm.tasks.builtin" in {plugin["name"] for plugin in plugins["plugins"]}
    assert document("plugin", "show", "grpo")[0]["kind"] == "estimator"


def test_a_key_is_in_no_document(rllm_says, document, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-secret")
    address = ("--base-url", "http://127.0.0.1:1/v1", "--model-id", "m", "--key-env", "MY_KEY")
    rllm_says("model", "setup", "far", *address, "--no-try")
    assert document("model", "show", "far")["has_key"] is True
    assert "sk-secret" not in rllm_says("model", "list", "--json")


def test_runs_and_an_agent_that_prints(document, here):
    """One training run and one evaluation serve all that reads runs."""
    (here / "agent.py").write_text(AGENT)
    agent = ("--agent", "agent.py:solve")
    trained = document(*SMALL, *agent, "run_dir=runs/one")
    assert (trained["steps"], trained["run_dir"]) == (1, "runs/one")
    report = document("eval", "chain_sum", "--model", "rllm-tiny", *agent, "limit=4", "sampling.max_tokens=8",
                      "run_dir=runs/two")  # fmt: skip
    assert report["summary"]["n_tasks"] == 4
    listed = document("run", "list")
    assert [(run["path"], run["kind"], run["state"]) for run in listed] == [
        ("runs/one", "train", "finished"),
        ("runs/two", "eval", "finished"),
    ]
    shown = document("run", "show", "runs/one", "--episodes", "1")
    assert shown["settings"]["batch_tasks"] == 2
    assert [line["step"] for line in shown["metrics"]][-1] == 1
    assert shown["episodes"][0]["task"]["prompt"]
    compared = document("run", "compare", "runs/one", "runs/two")
    assert [run["path"] for run in compared["runs"]] == ["runs/one", "runs/two"]
    assert compared["differing"]["samples"] == [None, 1]
    checked = document("run", "check", "runs/one", code=1 if trained["findings"] else 0)
    assert (checked["steps"], checked["findings"]) == (1, trained["findings"])


def test_a_dry_run_says_what_the_run_would_be_and_leaves_nothing(rllm_says, document, here):
    (here / "some.yaml").write_text("group_size: 3\nloss: ppo\n")
    before = sorted(here.rglob("*"))
    plan = document(*TRAIN, "--config", "some.yaml", "ppo.clip_high=0.3", "run_dir=runs/never", "--dry-run")
    text = rllm_says(*TRAIN, "--config", "some.yaml", "ppo.clip_high=0.3", "run_dir=runs/never", "--dry-run")
    assert sorted(here.rglob("*")) == before
    settings, sources = plan["settings"], plan["sources"]
    assert (settings["group_size"], settings["ppo"]["clip_high"], settings["seed"]) == (2, 0.3, 0)
    assert (sources["loss"], sources["group_size"], sources["ppo.clip_high"]) == ("some.yaml", "given", "given")
    assert (sources["seed"], sources["optimizer.lr"]) == ("default", "default")
    assert plan["parts"]["loss ppo"] == "by rllm.update.builtin"
    counts = plan["counts"]
    assert (counts["training questions"], counts["steps"], counts["rollouts of a step"]) == (136, 1, 4)
    assert counts["sampled tokens of a step, at one call a rollout"] == 4 * 24
    # Against what is known of the model: its parameters, and what AdamW holds of each.
    estimate = plan["estimate"]
    assert estimate["n_parameters"] == estimate["n_trained"] == 738_176
    memory = estimate["memory"]
    assert (memory["weights"], memory["gradients"]) == (4 * 738_176, 4 * 738_176)
    assert memory["optimizer"] == 8 * 738_176
    assert max(memory.values()) < estimate["peak_bytes"] <= sum(memory.values())
    assert all(seconds > 0 for seconds in estimate["seconds"].values())
    # As text it is a file that --config takes back.
    assert yaml.safe_load(text) == settings
    assert "loss: ppo  # some.yaml" in text


def test_a_dry_run_knows_lora_resumed_runs_and_models_that_are_not_here(rllm_says, document):
    lora = document(*TRAIN, "lora.rank=4", "--dry-run")["estimate"]
    # Three layers of q, k, v, o [128 × 128], gate, up [384 × 128] and down [128 × 384]: rank × (in + out) of each.
    assert lora["n_trained"] == 3 * 4 * (4 * 256 + 3 * 512)
    assert lora["memory"]["optimizer"] == 8 * lora["n_trained"]
    rllm_says(*SMALL, "run_dir=stopped")
    resumed = document("train", "--resume", "stopped", "steps=3", "--dry-run")
    assert "it goes on after step 1" in resumed["notes"]
    assert (resumed["sources"]["steps"], resumed["sources"]["batch_tasks"]) == ("given", "stopped")
    absent = document("train", "chain_sum", "--dry-run")
    assert absent["estimate"] is None
    assert "`rllm model setup smollm2-135m` fetches it" in absent["notes"][0]


def test_a_dry_run_of_fine_tuning(rllm_says, document, here):
    (here / "chats.jsonl").write_text("".join(f'{{"prompt": "{n} + 1", "answer": "{n + 1}"}}\n' for n in range(20)))
    plan = document("sft", "chats.jsonl", "--model", "rllm-tiny", "batch_size=4", "--dry-run")
    counts = plan["counts"]
    assert (counts["conversations to train on"], counts["held-out conversations"], counts["steps"]) == (18, 2, 5)
    assert plan["estimate"]["seconds"].keys() == {"updates"}
    tuning = ("sft", "chats.jsonl", "--model", "rllm-tiny", "batch_size=4")
    rllm_says(*tuning, "steps=1", "run_dir=tuned")
    resumed = document("sft", "--resume", "tuned", "steps=2", "--dry-run")
    assert "it goes on after step 1" in resumed["notes"]
    rllm_says("sft", "--resume", "tuned", "batch_size=3", "--dry-run", code=1)
