"""What every command with ``--json`` shares: one JSON document on stdout and nothing else there, errors on stderr."""

__all__ = ["json_option", "only_json", "print_json"]

import contextlib
import sys
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def json_option(function: F) -> F:
    """The option ``--json``, the argument ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, and nothing else there.")(
        function
    )


def print_json(document: Any) -> None:
    """Print plain data, dataclasses, pydantic models and paths; NaN and the infinities, which JSON has not, as null."""
    from pydantic_core import to_json

    click.echo(to_json(document, indent=2, inf_nan_mode="null"))


@contextlib.contextmanager
def only_json(as_json: bool) -> Generator[None]:
    """Around work that may print (an agent's ``print`` does): with ``--json`` it goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        yield
