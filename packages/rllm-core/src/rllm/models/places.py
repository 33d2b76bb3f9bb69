"""Where rLLM keeps what is the user's own: settings in one folder, what can be made again in another.

Both are where the platform puts such things (platformdirs); the environment variable ``RLLM_HOME`` puts both below
one folder instead.
"""

__all__ = ["cache_dir", "config_dir"]

import os
from pathlib import Path

import platformdirs


def config_dir() -> Path:
    """The folder of ``models.json`` and ``keys.json``; it need not exist."""
    home = os.environ.get("RLLM_HOME")
    return Path(home).expanduser() / "config" if home else Path(platformdirs.user_config_dir("rllm", appauthor=False))


def cache_dir() -> Path:
    """The folder of converted models; it need not exist, and may be deleted at any time that rLLM does not run."""
    home = os.environ.get("RLLM_HOME")
    return Path(home).expanduser() / "cache" if home else Path(platformdirs.user_cache_dir("rllm", appauthor=False))
