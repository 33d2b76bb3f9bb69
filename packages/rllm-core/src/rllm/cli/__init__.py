"""The command line: each command is a thin door to what Python reaches too, imported when it is called."""

__all__ = ["main"]

from rllm.cli.app import main
