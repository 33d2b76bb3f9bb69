"""The README and the pages under docs/, taken apart into their code blocks: shared by the tests of the docs."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block; ``info`` is what stands behind its language."""

    language: str
    info: str
    body: str
    line: int

    @property
    def title(self) -> str | None:
        found = re.search(r'title="([^"]+)"', self.info)
        return found and found[1]


def blocks(page: Path) -> list[Block]:
    """Every block of a page, in its order."""
    text = page.read_text(encoding="utf-8")
    return [Block(m[1], m[2].strip(), m[3], text[: m.start()].count("\n") + 1) for m in FENCE.finditer(text)]


def append(block: Block, folder: Path) -> None:
    """Write a titled block to its file below ``folder``, behind what blocks of that title have brought before."""
    assert block.title is not None
    path = folder / block.title
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text(encoding="utf-8") + "\n\n" if path.exists() else ""
    path.write_text(before + block.body, encoding="utf-8")
