"""Every piece of code in the README and the docs is run, page by page, in a folder of its own.

A fence's info string says what becomes of it:

    ```python title="my_agent.py"    (any language with a title) is written to that file, behind what has gone there
    ```python                        is run as a script
    ```console                       each line after "$ " is run and must succeed
    ```console fails                 each must fail, and print the lines that follow it
    ```console no-run                is only shown: it takes minutes, or needs what CI has not
    ```text, ```yaml, ```json        are only shown
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import DOCS, ROOT, Block, append, blocks

PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
NOT_RUN = {
    "README.md": 3,
    "models.md": 3,
    "quickstart.md": 2,
    "tasks.md": 1,
    "training.md": 1,
}
"""Page → blocks that are only shown. A new one must be entered here, so that nobody hides code by chance."""


def run(arguments: list[str], folder: Path, where: str, *, fails: bool = False) -> str:
    environment = os.environ | {
        "RLLM_HOME": str(folder / ".home"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "160",
    }
    environment.pop("OPENAI_API_KEY", None)
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    said = done.stdout + done.stderr
    assert (done.returncode != 0) == fails, f"{where}: exit {done.returncode}\n{said}"
    return said


def run_console(block: Block, folder: Path, where: str) -> None:
    fails = "fails" in block.info
    said = ""
    for line in block.body.splitlines():
        if line.startswith("$ "):
            said = run(["bash", "-c", line[2:]], folder, f"{where}: {line}", fails=fails)
        elif fails and line.strip():
            assert line.strip() in said, f"{where}: {line!r} is not in\n{said}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_the_code_of_a_page_runs(page, tmp_path):
    for block in blocks(page):
        where = f"{page.name} line {block.line}"
        if "no-run" in block.info:
            continue
        if block.title:
            append(block, tmp_path)
        elif block.language == "python":
            script = tmp_path / f"block_{block.line}.py"
            script.write_text(block.body)
            run([sys.executable, script.name], tmp_path, where)
        elif block.language == "console":
            run_console(block, tmp_path, where)
        else:
            assert block.language in {"text", "yaml", "json", "jsonl", "toml"}, f"{where}: what is {block.language}?"


def test_what_is_only_shown_is_known():
    shown = {p.name: sum("no-run" in b.info for b in blocks(p)) for p in PAGES}
    assert {name: n for name, n in shown.items() if n} == NOT_RUN


def test_no_link_of_the_readme_is_dead():
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert [target for target in links if not (ROOT / target).exists()] == []
    assert {f"docs/{page.name}" for page in PAGES if page.parent == DOCS} - {"docs/index.md"} <= set(links)
