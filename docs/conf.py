"""The documentation as a site: Sphinx makes it of this folder's pages, which read as well as they stand on GitHub.

    make docs

What GitHub and Sphinx write differently is put right as a page is read: the title of a code block becomes its caption,
and a link out of this folder leads to the repository, if the file is there.
"""

import re
import tomllib
from pathlib import Path

from pygments.lexers.data import JsonLexer
from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).parents[1]
PACKAGE = tomllib.loads((ROOT / "packages/rllm-core/pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = PACKAGE["urls"]["Homepage"]

project = "rLLM"
author = copyright = PACKAGE["authors"][0]["name"]
release = PACKAGE["version"]
html_title = f"rLLM {release}"
html_theme = "furo"
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/"}

extensions = ["myst_parser"]
myst_heading_anchors = 3
# Options are written with two hyphens, which must stay two.
smartquotes = False

log = logging.getLogger(__name__)

TITLED = re.compile(r'^```(\w+) title="([^"]+)".*$', re.MULTILINE)
LINK_OUT = re.compile(r"\]\(\.\./([^)#\s]+)")


def as_myst(app: Sphinx, docname: str, source: list[str]) -> None:
    """The page as MyST reads it."""

    def to_repository(link: re.Match[str]) -> str:
        target = ROOT / link[1]
        if not target.exists():
            log.warning("the link leads to %s, which is not in the repository", link[1], location=docname)
        return f"]({REPOSITORY}/{'tree' if target.is_dir() else 'blob'}/main/{link[1]}"

    source[0] = LINK_OUT.sub(to_repository, TITLED.sub(r"```{code-block} \1\n:caption: \2\n", source[0]))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_lexer("jsonl", JsonLexer)
    app.connect("source-read", as_myst)
