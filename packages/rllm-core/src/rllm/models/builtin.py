"""The built-in models: where each lies, and how it is made where it is not there yet."""

__all__ = ["BUILTIN", "BUILTIN_NAMES", "Builtin"]

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rllm.models import smollm2


@dataclass(frozen=True)
class Builtin:
    """One built-in model."""

    summary: str
    folder: Callable[[], Path]
    """Where it lies; the folder exists if and only if the model is ready."""
    make: Callable[[Callable[[str], None]], None]
    """Makes that folder, saying in sentences what it does. Raises ModelError."""


def _tiny_folder() -> Path:
    return Path(__file__).with_name("rllm_tiny")


def _nothing_to_make(say: Callable[[str], None]) -> None:
    say(f"rllm-tiny is shipped with the package, in {_tiny_folder()}")


BUILTIN: dict[str, Builtin] = {
    "smollm2-135m": Builtin(
        "SmolLM2-135M-Instruct, 135M parameters, context 8192: the default", smollm2.folder, smollm2.make
    ),
    "rllm-tiny": Builtin(
        "0.7M parameters, context 8192, knows sums and tool calls: for tests and demos", _tiny_folder, _nothing_to_make
    ),
}

BUILTIN_NAMES: tuple[str, ...] = tuple(BUILTIN)
