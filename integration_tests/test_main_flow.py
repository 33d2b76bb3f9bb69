"""The whole flow on the tiny model, by every door: what a newcomer does in the first hour, in seconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rllm

RLLM = str(Path(sys.executable).with_name("rllm"))


def metrics(run_dir: str | Path) -> list[dict]:
    lines = (Path(run_dir) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def without_clock(lines: list[dict]) -> list[dict]:
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


def rllm_command(*arguments: str, cwd: Path, code: int = 0) -> str:
    done = subprocess.run(
        [RLLM, *arguments], cwd=cwd, capture_output=True, text=True, timeout=240, env=os.environ | {"COLUMNS": "200"}
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


AGENT = """
import rllm
from openai import OpenAI


@rllm.rollout
def solve(task):
    reply = OpenAI().chat.completions.create(
        model="policy", messages=[{"role": "user", "content": task.prompt}])
    return reply.choices[0].message.content


@rllm.evaluator
def grade(task, episode):
    return episode.output.strip() == task.answer
"""


def test_python_and_the_command_line_give_the_same_metrics(tmp_path, monkeypatch, small):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "my_agent.py").write_text(AGENT)
    del small["run_dir"]
    settings = [f"{k}={v}" for k, v in small.items()]
    rllm_command("train", "chain_sum", "--agent", "my_agent.py:solve", "--evaluator", "my_agent.py:grade",
                 *settings, "run_dir=by_command", cwd=tmp_path)  # fmt: skip
    script = (
        "import my_agent, rllm, json\n"
        "result = rllm.AgentTrainer(agent=my_agent.solve, evaluator=my_agent.grade, tasks='chain_sum',\n"
        f"    settings=json.loads({json.dumps(json.dumps(small | {'run_dir': 'by_python'}))!s})).train()\n"
    )
    (tmp_path / "by_python.py").write_text(script)
    subprocess.run([sys.executable, "by_python.py"], cwd=tmp_path, check=True, timeout=240)
    by_command, by_python = metrics("by_command"), metrics("by_python")
    assert len(by_command) == small["steps"] + 3  # a line a step, the tasks, the validations before and after
    assert without_clock(by_python) == without_clock(by_command)


def test_a_run_leaves_a_model_that_can_be_evaluated_and_trained_again(tmp_path, small):
    settings = [f"{k}={v}" for k, v in small.items() if k not in ("model", "run_dir")]
    rllm_command("train", "chain_sum", "--model", "rllm-tiny", *settings, "run_dir=first", cwd=tmp_path)
    rllm_command("eval", "chain_sum", "--model", "first/model", "limit=4", "run_dir=evaluated", cwd=tmp_path)
    report = json.loads((tmp_path / "evaluated" / "report.json").read_text())
    assert report["summary"]["n_tasks"] == 4
    rllm_command("train", "chain_sum", "--model", "first/model", *settings, "run_dir=second", cwd=tmp_path)
    assert (tmp_path / "second" / "model" / "config.json").exists()


def test_two_roles_are_trained_with_their_own_rewards_and_estimators(run):
    from openai import AsyncOpenAI

    seen = {}

    class Watch:
        @rllm.hookimpl
        def rllm_group_scored(self, group, advantages):
            seen.setdefault(group.role, []).append((list(group.rewards_G), advantages))

    async def debate(task, config):
        async with AsyncOpenAI(base_url=config.base_url, api_key=config.api_key) as client:
            ask = [{"role": "user", "content": task.prompt}]
            with rllm.as_role("solver"):
                answer = (await client.chat.completions.create(model="policy", messages=ask)).choices[0].message.content
            with rllm.as_role("checker"):
                check = [{"role": "user", "content": f"Is {answer} right?"}]
                await client.chat.completions.create(model="policy", messages=check)
        return answer

    def grade(task, episode):
        solver, checker = (next(t for t in episode.trajectories if t.role == r) for r in ("solver", "checker"))
        by_role = {
            "solver": float(len(solver.steps[0].completion_ids)),
            "checker": float(sum(checker.steps[0].completion_ids) % 7),
        }
        return rllm.Reward(value=0.0, by_role=by_role)

    plugins = rllm.get_plugins()
    watch = Watch()
    plugins.register(watch)
    try:
        result = run(debate, grade, steps=1, estimator_by_role={"checker": "rloo"}, validation__limit=0)
    finally:
        plugins.unregister(watch)
    assert set(seen) == {"solver", "checker"}
    for rewards, advantages in seen["checker"]:
        n = len(rewards)
        expected = [r - (sum(rewards) - r) / (n - 1) for r in rewards]  # leave-one-out, Kool et al. 2019
        assert advantages == pytest.approx(expected)
    (step,) = (line for line in metrics(result.run_dir) if "trace/rows_per_trajectory" in line)
    assert step["trace/rows_per_trajectory"] == 1.0
    assert "constant_evaluator" not in {finding.name for finding in result.findings}


def test_help_and_the_import_are_light():
    script = "import sys, rllm; rllm.rollout; rllm.evaluator; rllm.AgentTrainer; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "openai", "peft"} & set(loaded)
    assert "train" in rllm_command("--help", cwd=Path.cwd())


def test_many_turns_with_tools_agree_between_sampler_and_trainer(run):
    """Four turns with tools, random delays, other sessions joining and leaving: one row each, the same logprobs."""
    import asyncio
    import random

    from openai import AsyncOpenAI

    tool = {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}},
    }

    async def wander(task, config):
        pause = random.Random(config.sample)
        messages = [{"role": "user", "content": task.prompt}]
        async with AsyncOpenAI(base_url=config.base_url, api_key=config.api_key) as client:
            for _ in range(4):
                await asyncio.sleep(pause.random() / 10)
                reply = await client.chat.completions.create(model="policy", messages=messages, tools=[tool])
                message = reply.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                calls = message.tool_calls or []
                messages += [{"role": "tool", "tool_call_id": c.id, "content": "nothing"} for c in calls]
                messages += [] if calls else [{"role": "user", "content": "Go on."}]
        return str(pause.random())

    def grade(task, episode):
        return float(sum(i for s in episode.steps for i in s.completion_ids) % 11)  # differs within every group

    result = run(wander, grade)
    steps = [line for line in metrics(result.run_dir) if "update/optimizer_steps" in line]
    assert len(steps) == 2
    for line in steps:
        assert line["update/logprob_gap_max"] < 1e-4
        assert line["trace/rows_per_trajectory"] == 1.0
        assert line["trace/prefix_breaks"] == 0
        assert line["rollout/calls_mean"] == 4.0
