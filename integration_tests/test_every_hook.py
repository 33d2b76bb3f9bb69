"""The plugin of docs/hooks.md, installed as a stranger would, is called at each hook, in order and where promised."""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from pages import DOCS, append, blocks

from rllm import hookspecs

PAGE = DOCS / "hooks.md"
HOOKS = {name for name in vars(hookspecs) if name.startswith("rllm_")}


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    for block in blocks(PAGE):
        if block.title is not None:
            append(block, folder)
    site = folder / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), str(folder / "every-hook")], check=True)
    return site


def run_rllm(installed: Path, folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[dict]]:
    """The command's outcome and the plugin's journal."""
    journal = folder / "journal.jsonl"
    environment = os.environ | {
        "PYTHONPATH": str(installed),
        "JOURNAL": str(journal),
        "RLLM_HOME": str(folder / "home"),
    }
    command = [str(Path(sys.executable).with_name("rllm")), *arguments, f"run_dir={folder / 'run'}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    return done, [json.loads(line) for line in journal.read_text().splitlines()]


TRAIN = (
    *("train", "counting", "--model", "rllm-tiny", "--agent", "asks", "--evaluator", "brief"),
    *("estimator=centred", "loss=plain", "backend=stranger", "loggers=journal"),
    *("steps=2", "batch_tasks=2", "group_size=3", "validation.limit=2"),
)


def test_the_page_has_a_section_for_every_hook_with_an_implementation_of_it():
    sections = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    implemented = {s.split("`")[1] for s in sections if f"\ndef {s.split('`')[1]}(" in s.split("\n## ")[0]}
    assert implemented == HOOKS


def test_an_installed_plugin_is_called_at_every_hook_in_order(installed, tmp_path):
    done, journal = run_rllm(installed, tmp_path, *TRAIN)
    assert done.returncode == 0, done.stdout + done.stderr

    of_session = defaultdict(list)
    for line in journal:
        if "session" in line:
            of_session[line["session"]].append(line["what"])
    assert len(of_session) == 2 + 2 * 2 * 3 + 2
    assert {tuple(calls) for calls in of_session.values()} == {
        ("session_started", "context_entered", "step_recorded", "context_left", "episode_finished")
    }

    what = [line["what"] for line in journal]
    milestones = [w for w in what if w in {"backend", "estimator", "update_finished", "run_finished"}]
    assert milestones == ["backend", *["estimator", "update_finished"] * 2, "run_finished"]
    first_update = what.index("update_finished")
    assert what[what.index("estimator") : first_update].count("group_scored") == 2
    assert "loss" in what[what.index("estimator") : first_update]
    assert all(abs(sum(line["advantages"])) < 1e-9 for line in journal if line["what"] == "group_scored")
    assert all(line["tokens"] > 0 for line in journal if line["what"] == "step_recorded")
    assert [line["step"] for line in journal if line["what"] == "logged" and line["has_reward"]] == [1, 2]
    assert what[-2:] == ["logger_closed", "run_finished"]
    assert journal[-1] | {"thread": ""} == {
        "what": "run_finished",
        "thread": "",
        "run_dir": str(tmp_path / "run"),
        "error": None,
    }

    threads = defaultdict(set)
    for line in journal:
        threads[line["what"]].add(line["thread"])
    loop = threads["run_finished"]
    for hook in ("session_started", "episode_finished", "group_scored", "update_finished"):
        assert threads[hook] == loop, hook
    assert len(loop) == 1
    assert threads["step_recorded"].isdisjoint(loop)


def test_a_run_that_fails_tells_the_plugin_why(installed, tmp_path):
    done, journal = run_rllm(installed, tmp_path, *TRAIN, "optimizer.lr=1e30")
    last = journal[-1]
    assert done.returncode != 0
    assert last["what"] == "run_finished"
    assert last["error"]
    assert last["error"].split(".")[0] in " ".join((done.stdout + done.stderr).split())
