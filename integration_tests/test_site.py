"""The documentation's site: built without a warning, which a dead link would be; and what is generated is current."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import DOCS, ROOT


def build(source: Path, target: Path, builder: str) -> subprocess.CompletedProcess[str]:
    """What `make docs` does, with the settings of docs/."""
    strict = ("--fail-on-warning", "--nitpicky", "--fresh-env", "--quiet")
    where = ("--builder", builder, "--conf-dir", str(DOCS), str(source), str(target))
    command = [sys.executable, "-m", "sphinx", *strict, *where]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = build(DOCS, target, "html")
    assert done.returncode == 0, done.stderr
    return target


def test_every_page_is_in_the_site_and_its_links_lead_somewhere(site):
    for page in DOCS.glob("*.md"):
        links = re.findall(r'href="([^"#:]+\.html)[#"]', (site / f"{page.stem}.html").read_text(encoding="utf-8"))
        assert len(links) > 10
        assert [link for link in links if not (site / link).is_file()] == []


def test_a_code_blocks_title_is_its_caption_and_a_link_out_leads_to_the_repository(site):
    assert "my_agent.py" in re.sub("<[^>]+>", "", (site / "quickstart.html").read_text(encoding="utf-8"))
    assert 'href="https://github.com/rllm-org/rllm/blob/main/CHANGELOG.md"' in (site / "index.html").read_text()


def test_a_dead_link_of_any_kind_fails_the_build(tmp_path):
    source = tmp_path / "docs"
    source.mkdir()
    (source / "index.md").write_text(
        "# A\n\n[page](gone.md) [place](#nowhere) [elsewhere](other.md#nowhere) [file](../gone.py)\n\n"
        "```{toctree}\nother\n```\n"
    )
    (source / "other.md").write_text("# B\n\n[it is there](index.md#a) [so is this](../Makefile)\n")
    done = build(source, tmp_path / "site", "dummy")
    assert done.returncode != 0
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert len(warnings) == 4, done.stderr
    assert all("index" in line for line in warnings)


def test_the_first_page_leads_to_every_other_in_the_order_of_the_site():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[[^\]]+\]\((\w+)\.md\): ", text, flags=re.MULTILINE)
    assert listed == text.split(":hidden:")[1].strip("`\n").split()


def test_the_page_of_commands_is_what_their_help_says_on_any_machine(tmp_path):
    elsewhere = {"HOME": str(tmp_path), "RLLM_HOME": str(tmp_path), "COLUMNS": "40"}
    command = [sys.executable, str(ROOT / "tools" / "commands_page.py"), "commands.md"]
    subprocess.run(command, cwd=tmp_path, env=os.environ | elsewhere, check=True, timeout=60)
    written = (tmp_path / "commands.md").read_text(encoding="utf-8")
    assert written == (DOCS / "commands.md").read_text(encoding="utf-8"), "run `make commands`"
