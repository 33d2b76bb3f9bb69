"""`rllm doctor`: each thing that would keep rLLM from working is found, with the next step."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rllm.cli import diagnosis


def doctor(folder: Path, *arguments: str, code: int = 0, **environment: str) -> str:
    clean = {k: v for k, v in os.environ.items() if k.upper() not in ("HTTP_PROXY", "ALL_PROXY", "NO_PROXY")}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("rllm")), "doctor", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        env=clean | {"RLLM_HOME": str(folder / "home")} | environment,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_a_sound_machine_has_no_problem(tmp_path):
    found = {finding["name"]: finding for finding in json.loads(doctor(tmp_path, "--json"))}
    assert {"python", "rllm", "torch", "transformers", "memory", "disk", "threads", "ports", "model"} <= found.keys()
    assert not [finding for finding in found.values() if finding["status"] == "problem"]


def test_a_proxy_that_would_take_loopback_calls(tmp_path):
    said = doctor(tmp_path, code=1, HTTP_PROXY="http://proxy:3128")
    assert "HTTP_PROXY would take calls to the gateway" in said
    assert "export NO_PROXY=127.0.0.1,localhost" in said
    assert "HTTP_PROXY would" not in doctor(tmp_path, HTTP_PROXY="http://proxy:3128", NO_PROXY="10.0.0.1, 127.0.0.1")


def test_a_folder_that_hides_the_package(tmp_path):
    (tmp_path / "rllm").mkdir()
    (tmp_path / "rllm" / "__init__.py").touch()
    assert "hides the installed rllm from scripts in here" in doctor(tmp_path, code=1)


def test_a_plugin_that_can_not_be_loaded(tmp_path):
    info = tmp_path / "site" / "broken-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rllm]\nbroken = no_such_module\n")
    said = doctor(tmp_path, code=1, PYTHONPATH=str(tmp_path / "site"))
    assert "broken could not be loaded: ModuleNotFoundError" in said


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        ("transformers", "5.4.0", "5.4.0 is older than 5.5.3"),
        ("torch", "2.13.0+cpu", "2.13.0+cpu"),
        ("litellm", "1.107.0", "1.107.0 is a compromised release"),
    ],
)
def test_versions(monkeypatch, name, version, said):
    real = diagnosis.metadata.version
    monkeypatch.setattr(diagnosis.metadata, "version", lambda n: version if n == name else real(n))
    found = [f for f in diagnosis.examine() if f.name == name]
    assert [f.what for f in found] == [said]
    assert (found[0].status == "problem") == ("is" in said)


def test_another_distribution_that_provides_rllm(monkeypatch):
    monkeypatch.setattr(diagnosis.metadata, "packages_distributions", lambda: {"rllm": ["rllm-core", "rllm"]})
    found = [f for f in diagnosis.examine() if f.name == "rllm"]
    assert "the module rllm also comes from rllm;" in found[0].what
    assert found[0].next_step.startswith("pip uninstall rllm,")


@pytest.mark.parametrize(
    ("system", "has_kill", "is_posix", "names"),
    [
        ("Linux", True, True, []),
        ("Darwin", True, True, ["platform"]),
        ("Windows", False, False, ["platform", "signals", "keys"]),
    ],
)
def test_what_another_system_lacks_is_said_with_what_to_do(monkeypatch, system, has_kill, is_posix, names):
    monkeypatch.setattr(diagnosis.platform, "system", lambda: system)
    monkeypatch.setattr(diagnosis, "HAS_SIGTERM", has_kill)
    monkeypatch.setattr(diagnosis, "IS_POSIX", is_posix)
    found = [f for f in diagnosis.examine() if f.name in ("platform", "signals", "keys") and f.status == "note"]
    assert [f.name for f in found] == names
    assert all(f.next_step for f in found)


def test_what_is_missing_is_a_note_and_a_check_that_fails_a_problem(monkeypatch):
    def no_version(name):
        raise diagnosis.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(diagnosis, "NEEDED", {"no-such-package": (1,)})
    monkeypatch.setattr(diagnosis.shutil, "disk_usage", lambda place: 1 / 0)
    found = {f.name: f for f in diagnosis.examine()}
    assert found["train"].status == "note"
    assert 'pip install "rllm-core[train]"' in found["train"].next_step
    assert (found["disk"].status, found["disk"].what) == ("problem", "ZeroDivisionError: division by zero")
