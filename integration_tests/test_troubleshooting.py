"""Every message that docs/troubleshooting.md quotes is one that the sources can say: the page can't go stale."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import DOCS, ROOT

SOURCES = ROOT / "packages" / "rllm-core" / "src"
VARIES = "…"
QUOTED = re.findall(r"\*\*`([^`]+)`\*\*", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"))


def texts(path: Path) -> Iterator[str]:
    """The texts of a module that are no docstrings, with … for what is filled in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else VARIES for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield re.sub(r"%[srd]", VARIES, node.value)


@pytest.fixture(scope="module")
def said() -> list[str]:
    return [text for path in sorted(SOURCES.rglob("*.py")) for text in texts(path)]


def is_said(message: str, said: list[str]) -> bool:
    """Whether a text has the fixed parts of a message, in their order, with something filled in wherever it says so."""
    fixed = [re.escape(part) for part in message.replace(f"'{VARIES}'", VARIES).split(VARIES)]
    pattern = re.compile(VARIES.join(fixed).replace(VARIES, f".*{VARIES}.*"))
    return any(pattern.search(text) for text in said)


def test_the_page_has_the_messages_that_a_user_is_most_likely_to_meet():
    assert len(QUOTED) >= 25
    assert len(QUOTED) == len(set(QUOTED))


@pytest.mark.parametrize("message", QUOTED)
def test_a_quoted_message_is_in_the_sources(message, said):
    fixed = max(message.split(VARIES), key=len)
    assert len(fixed.strip(" '.,:;=")) >= 8, "too little of it is fixed to tell it from others"
    assert is_said(message, said)


def test_a_message_that_nobody_says_any_more_is_noticed(said):
    assert not is_said("there is no setting of that sort", said)
    assert not is_said("no tasks … are given", said)
