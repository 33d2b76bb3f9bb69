"""The command line as a user meets it: one message for each mistake, never a traceback."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

RLLM = str(Path(sys.executable).with_name("rllm"))


@pytest.fixture
def rllm(tmp_path):
    def call(*arguments: str, code: int = 0, answers: str = "", folder: str = ".", **environment: str) -> str:
        done = subprocess.run(
            [RLLM, *arguments],
            cwd=tmp_path / folder,
            input=answers,
            capture_output=True,
            text=True,
            timeout=200,
            env=os.environ | {"RLLM_HOME": str(tmp_path / "home"), "COLUMNS": "160"} | environment,
        )
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        assert "Traceback" not in said
        return said

    return call


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trian",), "no command 'trian'. Did you mean 'train'"),
        (("train", "chain_sum", "--modle", "x"), "No such option"),
        (("train", "chain_sum", "grp_size=3"), "no setting 'grp_size'. Did you mean 'group_size'"),
        (("eval", "chain_sum", "--model", "rllm-tinny"), "'rllm-tiny'"),
        (("task", "show", "chain_smu"), "'chain_sum'"),
    ],
)
def test_the_installed_command_gives_one_message_that_names_the_fix(rllm, arguments, message):
    """A hundred more, in this process: ``test_wrong_invocations.py``."""
    code = 2 if any(w in message for w in ("no command", "No such option")) else 1
    assert message in rllm(*arguments, code=code)


def test_every_setting_is_listed_with_its_default(rllm):
    said = rllm("train", "--settings")
    for line in ("group_size=8", "optimizer.lr=7e-06", "grpo.std=True", "ppo.clip_high=0.28", "tinker.precision=auto"):
        assert line in said


def test_tasks_are_listed_and_one_is_shown(rllm):
    assert "chain_sum" in rllm("task", "list")
    assert "136 tasks to train on, 64 held out" in rllm("task", "show", "chain_sum")


def test_a_provider_is_set_up_by_flags_its_key_kept_for_its_user_alone(rllm, tmp_path):
    rllm(
        "model", "setup", "far", "--base-url", "http://127.0.0.1:1/v1", "--model-id", "m-1", "--key-env", "MY_KEY",
        "--no-try", MY_KEY="sk-secret",
    )  # fmt: skip
    listed, shown = rllm("model", "list"), rllm("model", "show", "far")
    assert "m-1 at http://127.0.0.1:1/v1" in listed
    assert "key       set" in shown
    assert "sk-secret" not in listed + shown
    holding = [p for p in (tmp_path / "home").rglob("*") if p.is_file() and "sk-secret" in p.read_text()]
    assert len(holding) == 1
    assert stat.S_IMODE(holding[0].stat().st_mode) == 0o600


def test_a_provider_is_set_up_by_questions_too(rllm):
    said = rllm("model", "setup", "--no-try", answers="mine\nhttp://127.0.0.1:1/v1\nm-2\n\n")
    assert "mine is ready (provider)" in said


def test_a_provider_can_not_be_trained_and_one_that_is_away_is_said_so(rllm):
    rllm("model", "setup", "far", "--base-url", "http://127.0.0.1:1/v1", "--model-id", "m", "--no-try", answers="\n")
    assert "its weights can't be trained" in rllm("train", "chain_sum", "--model", "far", code=1)
    said = rllm("eval", "chain_sum", "--model", "far", "limit=2", code=1)
    assert "gave no answer: Connection error. The model was not to blame" in said


def test_the_tiny_model_is_tried_by_the_path_of_an_evaluation(rllm):
    assert "it says:" in rllm("model", "setup", "rllm-tiny")


def test_plugins_are_listed_and_shown_with_what_they_have_registered(rllm):
    assert "rllm.tasks.builtin  " in rllm("plugin", "list")
    assert "estimator grpo (by rllm.advantage.builtin)" in rllm("plugin", "show", "grpo")
    assert "task letters (by rllm.tasks.builtin)" in rllm("plugin", "show", "rllm.tasks.builtin")
    assert "Did you mean 'grpo'" in rllm("plugin", "show", "grop", code=1)


def test_an_init_project_is_whole_and_never_overwrites(rllm, tmp_path):
    assert "rllm train --config rllm.yaml" in rllm("init", "mine")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=tmp_path / "mine", capture_output=True, text=True, timeout=200
    )
    assert "2 passed" in done.stdout, done.stdout
    settings = ("--model", "rllm-tiny", "python.held_out=4", "run_dir=run")
    assert "4 questions" in rllm("eval", "--config", "rllm.yaml", *settings, folder="mine")
    rllm("train", "--config", "rllm.yaml", *settings[:3], "steps=1", "run_dir=trained", folder="mine")
    rllm("run", "show", "trained", folder="mine")
    assert "holds README.md, agent.py" in rllm("init", "mine", code=1)


def test_a_shells_completion_knows_commands_tasks_and_models(rllm):
    assert "_RLLM_COMPLETE=bash_complete" in rllm("completion", "bash")

    def completed(words: str) -> str:
        return rllm(_RLLM_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(len(words.split(" ")) - 1))

    assert "plain,train" in completed("rllm tr")
    assert "plain,chain_sum" in completed("rllm train chain_")
    assert "plain,rllm-tiny" in completed("rllm eval --model rllm")
