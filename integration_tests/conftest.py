"""What the integration tests share: a folder of their own, a small run, and a run in a process that can be killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rllm
import rllm.trace

SMALL: dict[str, Any] = {
    "model": "rllm-tiny",
    "steps": 2,
    "batch_tasks": 3,
    "group_size": 4,
    "validation.limit": 6,
    "sampling.max_tokens": 12,
    "optimizer.lr": 1e-3,
    "run_dir": "run",
}
"""Settings of a run that takes seconds."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Tests that a shell started in the background ignore Ctrl-C, and so would the processes that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def small() -> dict[str, Any]:
    return dict(SMALL)


@pytest.fixture
def run(tmp_path, monkeypatch) -> Callable[..., Any]:
    """``run(agent=…, evaluator=…, tasks=…, **settings)``: one small training run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def start(agent: Any = None, evaluator: Any = None, tasks: Any = "chain_sum", **settings: Any) -> Any:
        merged = SMALL | {name.replace("__", "."): value for name, value in settings.items()}
        return rllm.AgentTrainer(agent=agent, evaluator=evaluator, tasks=tasks, settings=merged).train()

    return start


# --- in a process of its own --------------------------------------------------------------------------------------

RLLM = str(Path(sys.executable).with_name("rllm"))

AGENT = '''
import asyncio, random
import rllm
import rllm.trace
from openai import AsyncOpenAI


@rllm.rollout
async def solve(task):
    """Two calls at once and one after them, with delays that no seed rules."""
    async with AsyncOpenAI() as client:

        async def ask(text):
            await asyncio.sleep(random.random() * 0.02)
            reply = await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": text}])
            return reply.choices[0].message.content

        heard = await asyncio.gather(ask("First: " + task.prompt), ask("Second: " + task.prompt))
        return await ask(task.prompt + " | ".join(heard))


@rllm.evaluator
def grade(task, episode):
    return (sum(map(ord, episode.output)) % 7) / 7
'''

SETTINGS = (
    *("steps=16", "batch_tasks=2", "group_size=3", "sampling.max_tokens=8", "optimizer.lr=1e-3", "validation.limit=4"),
    *("validation.every_steps=3", "checkpoint.every_s=0", "tinker.deterministic=true", "tinker.threads=1"),
)
RUN = ("chain_sum", "--model", "rllm-tiny", "--agent", "agent.py:solve", "--evaluator", "agent.py:grade", *SETTINGS)


def run_command(folder: Path, *arguments: str, code: int = 0) -> str:
    """What ``rllm …`` says, with this exit status."""
    done = subprocess.run(
        [RLLM, *arguments], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def start(folder: Path, *arguments: str, before: Callable[[], Any] | None = None) -> subprocess.Popen[str]:
    """``rllm train`` in a process of its own; ``before`` is called in it first."""
    return subprocess.Popen(
        [RLLM, "train", *arguments], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"}, preexec_fn=before,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    """What it wrote until it ended, with this exit status."""
    output = process.communicate(timeout=200)[0]
    assert process.returncode == code, output
    return output


def metrics(run: Path) -> list[dict[str, Any]]:
    """Its lines, without the times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


def outcome(run: Path) -> tuple[bytes, list[dict[str, Any]], list[Any]]:
    """Weights, metrics and episodes of a finished run; what is random or a time is left out."""
    with_store = rllm.trace.TraceStore(run / "traces.sqlite")
    episodes = [(e.task.id, e.sample, e.output, e.reward.value if e.reward else None) for e in with_store.episodes()]
    with_store.close()
    return (run / "model" / "model.safetensors").read_bytes(), metrics(run), sorted(episodes, key=str)


@pytest.fixture
def here(tmp_path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    return tmp_path
