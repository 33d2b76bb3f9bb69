"""``rllm init``: a small agent project that trains, with its test."""

__all__ = ["command"]

from importlib import resources
from pathlib import Path

import click

NEXT = """\
made {folder} with {files}
next:
  cd {folder}
  rllm eval --config rllm.yaml     what the model scores now
  rllm train --config rllm.yaml    train it
  python -m pytest                 the project's tests (pip install pytest)"""


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path("my-agent"))
def command(folder: Path) -> None:
    """Make FOLDER [default: my-agent] with an agent, its grader, its tasks, settings and a test.

    It trains as it stands; change it into yours. Nothing that exists is overwritten.
    """
    from rllm.errors import ConfigError

    parts = {entry.name.removesuffix(".txt"): entry.read_text(encoding="utf-8") for entry in _template()}
    there = [name for name in parts if (folder / name).exists()]
    if there:
        raise ConfigError(f"{str(folder)!r} holds {', '.join(there)} already, and would lose it: name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in parts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"the project can't be written to {str(folder)!r}: {error.strerror}. Name another folder"
        ) from error
    click.echo(NEXT.format(folder=folder, files=", ".join(parts)))


def _template() -> list[Path]:
    folder = Path(str(resources.files("rllm.cli") / "project"))
    return sorted(folder.glob("*.txt"))
