"""The names that the user has given to models, in ``models.json``, and their keys, in a file of their own.

``keys.json`` has mode 0600 inside a folder of mode 0700, so that no other user of the machine reads a key, and
``models.json`` can be shown or copied without giving one away. Both are replaced as a whole, never half-written.
"""

__all__ = ["Entry", "load_entries", "load_key", "save_entry"]

import json
import os
import secrets
from pathlib import Path
from typing import Any, Self

from filelock import FileLock
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from rllm.errors import ConfigError
from rllm.models.places import config_dir

MODELS, KEYS = "models.json", "keys.json"


class Entry(BaseModel):
    """What a registered name stands for: ``path`` alone (a folder or hub id), or ``base_url`` and ``model_id``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str | None = None
    base_url: str | None = None
    model_id: str | None = None

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if (self.path is None) == (self.base_url is None):
            raise ValueError("it needs either a path or a base_url")
        if (self.base_url is None) != (self.model_id is None):
            raise ValueError("base_url and model_id go together")
        return self


def load_entries() -> dict[str, Entry]:
    """Every registered name; none where there is no file. Raises ConfigError that names a broken file or entry."""
    path = config_dir() / MODELS
    entries: dict[str, Entry] = {}
    for name, data in _read_object(path).items():
        try:
            entries[name] = Entry.model_validate(data)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ConfigError(
                f"{path}: the model {name!r} can't be read: {reason}. Mend the entry, or take it out of the file"
            ) from error
    return entries


def load_key(name: str) -> str | None:
    """The key that was saved with ``name``. Raises ConfigError where other users could read the file."""
    path = config_dir() / KEYS
    if not path.exists():
        return None
    # Windows has no such bits; a user's folder there is private by its access control list.
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise ConfigError(f"other users can read the keys in {path}. Run: chmod 600 {path}")
    key = _read_object(path).get(name)
    if key is not None and not isinstance(key, str):
        raise ConfigError(f"{path}: the key of {name!r} is no text; set it up again with `rllm model setup {name}`")
    return key


def save_entry(name: str, entry: Entry, api_key: str | None) -> None:
    """Add or replace ``name``, and its key: None removes an older one. Raises ConfigError where nothing can be written.

    The key is written first: an entry whose key is missing would look ready, and fail at its first call.
    """
    folder = config_dir()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        with FileLock(folder / ".lock"):
            keys = _read_object(folder / KEYS)
            if api_key is not None or name in keys:
                keys.pop(name, None)
                _write_object(folder / KEYS, keys if api_key is None else keys | {name: api_key})
            entries = _read_object(folder / MODELS) | {name: entry.model_dump(exclude_none=True)}
            _write_object(folder / MODELS, entries)
    except OSError as error:
        raise ConfigError(
            f"the model {name!r} can't be saved in {folder}: {error.strerror}. Make the folder writable, or set "
            "RLLM_HOME to another one"
        ) from error


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:
        # The decoder's own message quotes no content, so it can't show a key.
        raise ConfigError(
            f"{path} is no JSON: {error}. Mend it, or move it away and set your models up again"
        ) from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds a {type(data).__name__}; it must hold an object of names")
    return data


def _write_object(path: Path, data: dict[str, Any]) -> None:
    """Replace ``path`` in one step, readable by its owner only from its first byte on."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(data, file, indent=2, sort_keys=True)
            file.write("\n")
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
