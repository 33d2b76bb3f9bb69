"""A stranger's way: from built wheels in an empty folder, each command as the one before suggests it, no docs read."""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MINUTES = 10


def suggested(said: str, verb: str) -> list[str]:
    """The arguments of the ``rllm VERB …`` that an output ends with."""
    found = re.findall(rf"rllm ({verb}\b.*?)(?:  |$)", said, re.MULTILINE)
    assert found, f"no `rllm {verb}` is suggested:\n{said}"
    return shlex.split(found[0])


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """``bin`` of a fresh environment with the wheel built here, as ``pip install "rllm-core[train]"`` has it."""
    place = tmp_path_factory.mktemp("fresh")
    package = ROOT / "packages" / "rllm-core"
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", place, package], check=True, timeout=600)
    (wheel,) = place.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True, timeout=200)
    scripts = place / "venv" / ("Scripts" if os.name == "nt" else "bin")
    constraints = ROOT / "constraints.txt"
    subprocess.run(
        [scripts / "python", "-m", "pip", "install", "--quiet", "--constraint", constraints, f"{wheel}[train]"],
        check=True,
        timeout=1800,
    )
    return scripts


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_from_an_empty_folder_to_a_checked_run_without_the_docs(installed, tmp_path):
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "OPENAI_API_KEY", "VIRTUAL_ENV")}
    environment = clean | {"RLLM_HOME": str(tmp_path / "home")}
    folder, deadline = tmp_path / "empty", time.monotonic() + 60 * MINUTES
    folder.mkdir()

    def rllm(arguments: list[str], *, codes: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            [installed / "rllm", *arguments], cwd=folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=deadline - time.monotonic(),
        )  # fmt: skip
        print(f"$ rllm {shlex.join(arguments)}\n{done.stdout}")
        assert done.returncode in codes, done.stdout
        assert "Traceback" not in done.stdout
        return done.stdout

    overview = rllm(["--help"])
    made = rllm(suggested(overview, "init"))
    folder /= re.findall(r"^  cd (.+)$", made, re.MULTILINE)[0]
    evaluated = rllm(suggested(made, "eval"))
    trained = rllm(suggested(evaluated, "train"))
    assert re.search(r"held out: accuracy \S+ → \S+", trained)
    checked = rllm(suggested(trained, "run check"), codes=(0, 1))
    shown = rllm(suggested(checked, "run show"))
    assert "asked: " in shown
    again = rllm(suggested(trained, "eval"))
    assert "accuracy" in again
