"""A run that is killed anywhere goes on from its files, bit for bit, and says why where it can't."""

import json
import random
import signal
import time
from pathlib import Path

import pytest
import torch

import rllm

from .conftest import RUN, finish, metrics, outcome, start


def kill_again_and_again(here: Path, kills: int, seed: int) -> None:
    """Start a run, kill it at random moments, go on until it ends; it must equal the run that nobody killed."""
    finish(start(here, *RUN, "run_dir=whole"))
    moments = random.Random(seed)
    arguments: tuple[str, ...] = (*RUN, "run_dir=killed")
    survived = 0
    for _ in range(kills):
        process = start(here, *arguments)
        assert process.stdout is not None
        while "held out; batches" not in (line := process.stdout.readline()):
            assert line, f"ended early with code {process.wait()}"
        time.sleep(moments.uniform(0.0, 1.5))
        process.send_signal(signal.SIGKILL)
        process.stdout.close()
        if process.wait() == 0:
            survived += 1
        arguments = ("--resume", "killed")
    finish(start(here, "--resume", "killed"))
    assert survived <= kills // 2, "the run ended before it was killed; make it longer"
    whole, killed = outcome(here / "whole"), outcome(here / "killed")
    assert killed[1] == whole[1]
    assert killed[2] == whole[2]
    assert killed[0] == whole[0]


def test_a_run_that_is_killed_at_random_moments_ends_bit_identical(here):
    kill_again_and_again(here, kills=10, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_a_run_that_is_killed_at_a_hundred_random_moments_ends_bit_identical(here, seed):
    kill_again_and_again(here, kills=10, seed=seed)


# --- in one process ---------------------------------------------------------------------------------------------


def test_a_longer_run_equals_one_that_was_resumed_with_more_steps(run):
    run(run_dir="whole", steps=4, validation__every_steps=2)
    run(run_dir="parts", steps=2, validation__every_steps=2, checkpoint__every_steps=1)
    rllm.AgentTrainer(resume="parts", settings={"steps": 4}).train()
    assert outcome(Path("parts"))[0] == outcome(Path("whole"))[0]
    (kept,) = Path("parts/checkpoints").iterdir()
    assert kept.name == "step-000004"


@pytest.mark.parametrize("rank", [0, 4])
def test_a_run_that_fails_goes_on_from_its_last_finished_step(rank, run, monkeypatch):
    from rllm.train import loop

    to_batch = loop.to_batch

    def fails_in_the_third_step(episodes, config, plugins, *, sampling, step):
        if step == 2:
            raise rllm.BackendError("the engine died of this test")
        return to_batch(episodes, config, plugins, sampling=sampling, step=step)

    settings = {"steps": 4, "lora__rank": rank, "checkpoint__every_s": None}
    run(run_dir="whole", **settings)
    monkeypatch.setattr(loop, "to_batch", fails_in_the_third_step)
    with pytest.raises(rllm.BackendError, match="died of this test"):
        run(run_dir="stopped", **settings)
    assert [path.name for path in Path("stopped/checkpoints").iterdir()] == ["step-000002"]
    monkeypatch.setattr(loop, "to_batch", to_batch)
    rllm.AgentTrainer(resume="stopped").train()
    assert outcome(Path("stopped")) == outcome(Path("whole"))


def test_what_differs_from_the_run_is_named_and_must_be_allowed(run, capfd):
    def other(task, episode):
        return 1.0 if "1" in episode.output else 0.0

    run(run_dir="run", steps=1)
    for change, message in (
        ({"settings": {"optimizer.lr": 5e-4}}, r"optimizer\.lr was 0\.001, is 0\.0005.*--allow-changes"),
        ({"settings": {"chain_sum.size": 150}}, r"chain_sum\.size was .*training tasks"),
        ({"evaluator": other}, "the evaluator was .*, is .*other"),
        ({"settings": {"optimizer.schedule": "linear", "steps": 2}}, r"optimizer\.schedule was .*steps was 1, is 2"),
    ):
        with pytest.raises(rllm.ConfigError, match=message):
            rllm.AgentTrainer(resume="run", **change).train()
    rllm.AgentTrainer(resume="run", evaluator=other, settings={"steps": 2}, allow_changes=True).train()
    assert "changed: the evaluator was" in capfd.readouterr().out
    with pytest.raises(rllm.ConfigError, match="'nowhere' holds no run to resume"):
        rllm.AgentTrainer(resume="nowhere")
    with pytest.raises(rllm.ConfigError, match=r"already holds a run.*rllm train --resume run"):
        run(run_dir="run")


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(run, capfd):
    run(run_dir="whole", steps=3)
    run(run_dir="run", steps=3, checkpoint__every_steps=1, checkpoint__keep_every=1)
    weights = Path("run/checkpoints/step-000003/backend/weights.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    rllm.AgentTrainer(resume="run").train()
    said = " ".join(capfd.readouterr().out.split())
    assert (
        "step-000003 is damaged (backend/weights.safetensors is not what was written); an earlier one is used" in said
    )
    assert "going on after step 2" in said
    assert outcome(Path("run")) == outcome(Path("whole"))
    for state in Path("run/checkpoints").glob("*/checkpoint.json"):
        state.write_text("{")
    with pytest.raises(rllm.CheckpointError, match=r"all checkpoints in .* are damaged"):
        rllm.AgentTrainer(resume="run").train()


def test_a_run_without_its_optimizers_state_does_not_go_on_unless_that_is_allowed(run, capfd):
    run(run_dir="run", steps=1)
    (state,) = Path("run/checkpoints").glob("*/checkpoint.json")
    state.with_name("backend").joinpath("optimizer.safetensors").unlink()
    found = json.loads(state.read_text())
    del found["files"]["backend/optimizer.safetensors"]
    state.write_text(json.dumps(found))
    with pytest.raises(rllm.BackendError, match="no optimizer state"):
        rllm.AgentTrainer(resume="run", settings={"steps": 2}).train()
    result = rllm.AgentTrainer(resume="run", settings={"steps": 2}, allow_changes=True).train()
    assert result.steps == 2
    assert "changed: the optimizer begins anew" in " ".join(capfd.readouterr().out.split())


def test_another_number_of_threads_is_said(run, caplog):
    run(run_dir="run", steps=1, tinker__threads=1)
    rllm.AgentTrainer(resume="run", settings={"steps": 2, "tinker.threads": 2}, allow_changes=True).train()
    assert "1 threads" in caplog.text
    assert "it will differ in the last bits" in caplog.text


def test_the_best_and_every_so_many_are_kept_where_that_is_asked_for(run):
    run(run_dir="run", steps=6, checkpoint__every_steps=1, checkpoint__keep_best=True, checkpoint__keep_every=4,
        validation__every_steps=1)  # fmt: skip
    rewards = {line["step"]: line["validation/reward"] for line in metrics(Path("run")) if "validation/reward" in line}
    best = max(sorted(range(1, 6), reverse=True), key=rewards.__getitem__)
    kept = {int(path.name.removeprefix("step-")) for path in Path("run/checkpoints").iterdir()}
    assert kept == {4, 6, best}


def test_two_processes_do_not_work_on_one_run(run, here):
    run(run_dir="run", steps=1)
    from filelock import FileLock

    with FileLock("run/.lock"), pytest.raises(rllm.ConfigError, match="worked on by another process"):
        rllm.AgentTrainer(resume="run").train()


def test_a_full_disk_ends_the_run_with_a_word_and_keeps_what_was_saved(run, monkeypatch):
    from rllm.train import checkpoints

    seal = checkpoints._seal

    def full(partial, final, cursor):
        if cursor["steps"] == 3:
            raise OSError(28, "No space left on device")
        seal(partial, final, cursor)

    run(run_dir="whole", steps=4)
    monkeypatch.setattr(checkpoints, "_seal", full)
    with pytest.raises(rllm.CheckpointError, match=r"step 3 can't be written.*No space left.*resume"):
        run(run_dir="run", steps=4, checkpoint__every_steps=1)
    assert sorted(path.name for path in Path("run/checkpoints").iterdir()) == ["step-000001", "step-000002"]
    monkeypatch.setattr(checkpoints, "_seal", seal)
    rllm.AgentTrainer(resume="run").train()
    assert outcome(Path("run")) == outcome(Path("whole"))


def test_the_state_of_the_optimizer_is_what_adamw_holds(run):
    run(run_dir="run", steps=2)
    from safetensors.torch import load_file

    (folder,) = Path("run/checkpoints").iterdir()
    weights = load_file(folder / "backend" / "weights.safetensors")
    moments = load_file(folder / "backend" / "optimizer.safetensors")
    assert {name.rpartition(".")[0] for name in moments} == set(weights)
    assert all(float(moments[f"{name}.step"]) == 2 for name in weights)
    assert any(torch.count_nonzero(moments[f"{name}.exp_avg"]) for name in weights)
