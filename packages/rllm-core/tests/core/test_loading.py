"""Loading what a user names as ``file.py:name``: once while the file stands unchanged, and files apart."""

import os
import sys

import pytest

from rllm.errors import ConfigError, UnknownNameError
from rllm.loading import load_object


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_two_names_of_one_file_share_its_state(tmp_path):
    (tmp_path / "mine.py").write_text("seen = []\ndef agent(): seen.append(1)\ndef grade(): return len(seen)\n")
    load_object("mine.py:agent", "agent")()
    assert load_object(str(tmp_path / "mine.py") + ":grade", "evaluator")() == 1


def test_a_changed_file_is_loaded_again(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("value = 1\n")
    assert load_object("mine.py:value", "agent") == 1
    file.write_text("value = 2\n")
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1_000_000_000))
    assert load_object("mine.py:value", "agent") == 2


def test_files_of_one_name_in_two_folders_do_not_mix(tmp_path):
    for n in (1, 2):
        (tmp_path / str(n)).mkdir()
        (tmp_path / str(n) / "agent.py").write_text(
            f"from dataclasses import dataclass\n\n@dataclass\nclass Thing:\n    n: int = {n}\n"
        )
    things = [load_object(f"{n}/agent.py:Thing", "agent")() for n in (1, 2)]
    assert [thing.n for thing in things] == [1, 2]
    assert things[0].__class__.__module__ != things[1].__class__.__module__


def test_a_file_imports_its_neighbours_as_a_script_could(tmp_path):
    (tmp_path / "neighbour_of_mine.py").write_text("value = 5\n")
    (tmp_path / "mine.py").write_text("from neighbour_of_mine import value\n")
    assert load_object("mine.py:value", "agent") == 5


def test_what_is_missing_is_named(tmp_path):
    (tmp_path / "mine.py").write_text("def solve(): ...\n")
    with pytest.raises(ConfigError, match=r"the agent's file 'yours.py' doesn't exist \(looked from "):
        load_object("yours.py:solve", "agent")
    with pytest.raises(UnknownNameError, match=r"there is no agent 'slove' in mine.py. Did you mean 'solve'"):
        load_object("mine.py:slove", "agent")


def test_a_file_that_failed_once_can_be_mended_and_loaded(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("1 / 0\n")
    before = set(sys.modules)
    with pytest.raises(ConfigError, match="raised ZeroDivisionError in line 1 when it was loaded"):
        load_object("mine.py:solve", "agent")
    assert set(sys.modules) == before
    file.write_text("def solve(): return 3\n")
    assert load_object("mine.py:solve", "agent")() == 3
