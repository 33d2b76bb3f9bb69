"""A run that is asked to stop ends its step and saves; asked twice, it ends at once; either way it can go on."""

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import pytest

import rllm

from .conftest import AGENT, RUN, finish, outcome, start


def read_until(process, mark: str) -> None:
    assert process.stdout is not None
    while mark not in (line := process.stdout.readline()):
        assert line, f"ended early with code {process.wait()}, without a line that has {mark!r}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What ``RUN`` leaves behind when nobody stops it."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "agent.py").write_text(AGENT)
    finish(start(folder, *RUN, "run_dir=run"))
    return outcome(folder / "run")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("mark", ["held out; batches", "step 2/"], ids=["in the first validation", "in a step"])
def test_asked_once_it_ends_the_step_saves_and_goes_on_later(here, whole, number, code, mark):
    process = start(here, *RUN, "run_dir=run")
    read_until(process, mark)
    process.send_signal(number)
    output = finish(process, code)
    assert f"stopped by {number.name} after" in output
    assert "Traceback" not in output
    finish(start(here, "--resume", "run"))
    assert outcome(here / "run") == whole


def test_asked_twice_it_ends_at_once_and_goes_on_later(here):
    """Its agent would go on for ever: the step never ends, and threads can't be killed."""
    agent = (here / "agent.py").read_text()
    (here / "agent.py").write_text(
        agent + "\n\nimport os, time\n\n\n@rllm.rollout\ndef hangs(task):\n"
        "    if os.path.exists('hang'):\n        time.sleep(1000)\n"
        "    from openai import OpenAI\n"
        "    OpenAI().chat.completions.create(model='policy', messages=[{'role': 'user', 'content': task.prompt}])\n"
    )
    run = [argument.replace("agent.py:solve", "agent.py:hangs") for argument in RUN]
    process = start(here, *run, "run_dir=run")
    read_until(process, "step 1/")
    (here / "hang").touch()
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    read_until(process, "once more to stop at once")
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    output = finish(process, 130)
    assert time.monotonic() - started < 20
    assert "stopped at once" in output
    assert "Traceback" not in output
    (here / "hang").unlink()
    finish(start(here, "--resume", "run"))
    finish(start(here, *run, "run_dir=whole"))
    assert outcome(here / "run") == outcome(here / "whole")


def test_a_signal_that_is_ignored_stays_ignored(here):
    process = start(here, *RUN, "run_dir=run", before=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    read_until(process, "step 1/")
    process.send_signal(signal.SIGINT)
    finish(process, 0)


# --- in one process ---------------------------------------------------------------------------------------------


def trainer(run_dir: str, steps: int) -> rllm.AgentTrainer:
    settings = {"steps": steps, "batch_tasks": 2, "group_size": 2, "sampling.max_tokens": 4, "validation.limit": 0}
    return rllm.AgentTrainer(tasks="chain_sum", model="rllm-tiny", settings=settings | {"run_dir": run_dir})


def after_the_first_step(action) -> None:
    """Do it in a thread, once the run has finished a step."""

    def wait():
        while not (Path("run/metrics.jsonl").exists() and Path("run/metrics.jsonl").stat().st_size):
            time.sleep(0.02)
        action()

    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.timeout(60)
def test_stop_ends_a_run_from_another_thread(here, monkeypatch):
    monkeypatch.chdir(here)
    running = trainer("run", steps=100_000)
    after_the_first_step(running.stop)
    result = running.train()
    assert result.stopped_by == "stop()"
    assert 0 < result.steps < 100_000
    assert result.after is None
    more = rllm.AgentTrainer(resume="run", settings={"steps": result.steps + 1}).train()
    assert (more.steps, more.stopped_by) == (result.steps + 1, None)


@pytest.mark.timeout(60)
def test_interrupting_a_notebooks_cell_stops_the_run(here, monkeypatch):
    monkeypatch.chdir(here)

    async def cell():
        after_the_first_step(lambda: os.kill(os.getpid(), signal.SIGINT))
        return trainer("run", steps=100_000).train()

    loop = asyncio.new_event_loop()
    result = loop.run_until_complete(cell())  # a kernel, too, leaves SIGINT to Python
    loop.close()
    assert result.stopped_by == "SIGINT"
    assert Path("run/report.json").exists()


async def test_the_callers_own_loop_keeps_its_signals(here, monkeypatch):
    monkeypatch.chdir(here)
    running = trainer("run", steps=2)
    before = signal.getsignal(signal.SIGINT)
    task = asyncio.create_task(running.train_async())
    while not Path("run/metrics.jsonl").exists():
        await asyncio.sleep(0.05)
    assert signal.getsignal(signal.SIGINT) is before
    assert (await task).stopped_by is None
