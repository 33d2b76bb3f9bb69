"""Why is the reward flat? Runs that are spoilt on purpose, each in one way, and what is said of them."""

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
from openai import OpenAI

import rllm
from rllm.backends.local.backend import LocalSampler
from rllm.cli.app import root
from rllm.tasks.source import ListedTasks
from rllm.types import Task


def asks(task: Task, *messages: dict[str, str], **request) -> str:
    asked = [{"role": "user", "content": task.prompt}, *messages]
    reply = OpenAI(max_retries=0).chat.completions.create(model="policy", messages=asked, **request)
    return reply.choices[0].message.content or ""


def by_letters(task, episode):
    """Not constant, not of the length alone, the same each time."""
    return (sum(map(ord, episode.output or "")) % 5) / 4


def found(run, **arguments) -> list[str]:
    """The names of what the report finds, and that the command says the same."""
    from click.testing import CliRunner

    result = run(**{"evaluator": by_letters, "steps": 4, "optimizer__lr": 1e-5, "sampling__max_tokens": 24} | arguments)
    said = CliRunner().invoke(root, ["run", "check", "run"])
    names = [finding.name for finding in result.findings]
    *lines, following = said.output.splitlines()
    assert [line.partition(":")[0] for line in lines] == (names or ["run"])
    assert following.startswith("read some rollouts")
    assert said.exit_code == bool(names)
    return names


def test_of_a_healthy_run_nothing_is_said(run):
    assert found(run, tasks="letters", evaluator=None, steps=8, optimizer__lr=5e-5) == []


def test_a_sampler_with_other_weights_than_the_trainers(run, monkeypatch):
    sample = LocalSampler.sample

    async def with_other_logprobs(self, prompt, params, n=1):
        drawn = await sample(self, prompt, params, n)
        return [dataclasses.replace(c, logprobs=(c.logprobs - 0.2).astype(np.float32)) for c in drawn]

    monkeypatch.setattr(LocalSampler, "sample", with_other_logprobs)
    assert "logprob_gap" in found(run)


def test_an_agent_that_edits_its_history(run):
    def edits(task):
        first = asks(task)
        second = asks(task, {"role": "assistant", "content": "I said: " + first}, {"role": "user", "content": "So?"})
        return asks(task, {"role": "assistant", "content": second.upper()}, {"role": "user", "content": "And?"})

    assert "prefix_breaks" in found(run, agent=edits)


def test_tasks_that_are_always_or_never_solved(run):
    assert "no_signal" in found(run, evaluator=lambda task, episode: float(sum(map(ord, task.id)) % 2))


def test_completions_that_are_cut(run):
    assert "truncated" in found(run, sampling__max_tokens=1)


def test_an_agent_that_often_fails(run):
    def fails(task):
        said = asks(task)
        if random.random() < 0.4:
            raise RuntimeError("of this test")
        return said

    random.seed(0)
    assert "failed" in found(run, agent=fails)


def test_rollouts_that_are_dropped(run):
    def fails(task):
        said = asks(task)
        if random.random() < 0.4:
            raise RuntimeError("of this test")
        return said

    random.seed(0)
    assert {"failed", "dropped"} <= set(found(run, agent=fails, rollout__on_failure__agent_error="drop"))


def test_a_sampler_that_cuts_the_distribution(run, monkeypatch):
    """As an engine does that takes top_p or a penalty from somewhere else than the run."""
    sample = LocalSampler.sample

    async def with_top_p(self, prompt, params, n=1):
        return await sample(self, prompt, params.model_copy(update={"top_p": 0.9}), n)

    monkeypatch.setattr(LocalSampler, "sample", with_top_p)

    def mixed(task):
        """Now and then a call as it should be, so that there is something to train on."""
        with pytest.MonkeyPatch.context() as patch:
            if random.random() < 0.5:
                patch.setattr(LocalSampler, "sample", sample)
            return asks(task)

    random.seed(0)
    assert found(run, agent=mixed, rollout__concurrency=1) == ["untrainable"]


def test_a_policy_that_moves_further_than_its_loss_allows(run):
    tight = {"loss": "ppo", "ppo__clip_low": 0.01, "ppo__clip_high": 0.01, "batch_tasks": 6, "minibatches": 6}
    names = found(run, **tight, optimizer__lr=1e-3, optimizer__warmup_steps=0)
    assert "clipped" in names
    assert "logprob_gap" not in names, "within a batch the policy moves away from the sampler's weights, by design"


def test_held_out_questions_that_are_also_trained_on(run):
    questions = [f"What is {a} + {a + 2}?" for a in range(12)]
    tasks = ListedTasks(
        name="sums",
        train_tasks=tuple(Task(id=f"t{k}", prompt=q) for k, q in enumerate(questions)),
        held_out_tasks=tuple(Task(id=f"h{k}", prompt=q.upper().replace("?", " ?")) for k, q in enumerate(questions)),
        evaluator=by_letters,
        max_tokens=24,
    )
    assert "shared_questions" in found(run, tasks=tasks, evaluator=None)


def test_a_reward_that_is_the_length(run):
    def length(task, episode):
        return min(1.0, sum(len(step.completion_ids) for step in episode.steps) / 24)

    assert "length" in found(run, evaluator=length)


def test_an_evaluator_that_is_constant(run):
    names = found(run, evaluator=lambda task, episode: 0.0)
    assert "constant_evaluator" in names
    assert "no_signal" not in names, "it follows from the other"


def test_an_evaluator_that_throws_dice(run):
    dice = random.Random(0)
    assert "unrepeatable_evaluator" in found(run, evaluator=lambda task, episode: dice.random())


# --- what the runs' folders tell --------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path, monkeypatch):
    from click.testing import CliRunner

    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(root, ["run", *arguments])
        assert result.exit_code == code, result.output
        return result.output

    return call


def test_runs_are_listed_shown_and_compared(run, command):
    run(run_dir="runs/one", steps=2, evaluator=by_letters)
    run(run_dir="runs/two", steps=3, evaluator=by_letters, optimizer__lr=1e-4)
    listed = command("list").splitlines()
    assert [line.split()[0] for line in listed] == ["run", "one", "two"]
    assert "finished" in listed[1]
    assert "rllm-tiny" in listed[1]
    shown = command("show", "runs/two", "--episodes", "2")
    assert "3 steps" in shown
    assert "optimizer.lr=0.0001" in shown
    assert "seed=" not in shown, "a default"
    assert shown.count("asked: ") == 2
    compared = command("compare", "runs/one", "runs/two")
    assert [line.split()[-2:] for line in compared.splitlines() if "optimizer.lr" in line] == [["0.001", "0.0001"]]
    assert "batch_tasks" not in compared, "the same in both"


def test_a_run_that_died_is_told_from_one_that_goes_on(run, command, monkeypatch):
    from filelock import FileLock

    from rllm.train import loop

    def dies(*_, **__):
        raise rllm.BackendError("of this test")

    monkeypatch.setattr(loop, "to_batch", dies)
    with pytest.raises(rllm.BackendError):
        run(run_dir="runs/dead", evaluator=by_letters)
    assert "ended early" in command("list")
    with FileLock("runs/dead/.lock"):
        assert "running" in command("list")
    assert "nothing to check" in command("check", "runs/dead")


def test_what_is_no_run_is_refused_by_name(command):
    from click.testing import CliRunner

    for arguments, message in ((["list", "nowhere"], "no folder 'nowhere'"), (["show", "."], "holds no run")):
        result = CliRunner().invoke(root, ["run", *arguments])
        assert isinstance(result.exception, rllm.ConfigError)
        assert message in str(result.exception)
    assert "at least two" in command("compare", ".", code=2)
    assert not list(Path().iterdir()), "nothing is written"
