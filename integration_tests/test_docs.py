"""Every piece of code in the README and the docs is run, page by page, in a folder of its own.

A fence's info string says what becomes of it:

    ```python title="my_agent.py"    (any language with a title) is written to that file
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
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_RUN = {
    "README.md": 3,
    "models.md": 3,
    "quickstart.md": 2,
    "tasks.md": 1,
    "training.md": 1,
}
"""Page → blocks that are only shown. A new one must be entered here, so that nobody hides code by chance."""

FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    language: str
    info: str
    body: str
    line: int

    @property
    def title(self) -> str | None:
        found = re.search(r'title="([^"]+)"', self.info)
        return found and found[1]


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(m[1], m[2].strip(), m[3], text[: m.start()].count("\n") + 1) for m in FENCE.finditer(text)]


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
            (tmp_path / block.title).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / block.title).write_text(block.body)
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


def test_every_hook_has_its_place_in_the_docs():
    from rllm import hookspecs

    page = (ROOT / "docs" / "hooks.md").read_text()
    missing = [name for name in vars(hookspecs) if name.startswith("rllm_") and f"`{name}" not in page]
    assert missing == []


def test_no_link_between_pages_is_dead():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+\.md)[^)]*\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
