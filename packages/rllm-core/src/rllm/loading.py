"""Loads what a user names by ``path/to/file.py:name`` or ``module:name``: an agent, an evaluator, tasks.

A file is loaded once while it stands unchanged, so that an agent and an evaluator of one file share its state.
"""

__all__ = ["load_object", "looked_for"]

import difflib
import hashlib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from rllm.errors import ConfigError, UnknownNameError

_loaded: dict[tuple[str, int], ModuleType] = {}
"""By resolved path and time of last change, nanoseconds."""


def load_object(reference: str, kind: str) -> Any:
    """The object that ``reference`` means; ``kind`` ("agent", …) is what messages call it.

    Raises ConfigError where the file or module can't be loaded, UnknownNameError where it has no such name.
    """
    where, _, name = reference.rpartition(":")
    module = _load_file(where, kind) if where.endswith(".py") else _import_module(where, reference, kind)
    if name not in vars(module):
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UnknownNameError(kind, name, public, where=where)
    return vars(module)[name]


def looked_for(path: str) -> str:
    """Where a path that is not there was looked for, and what is there of a name like it: the end of a message."""
    place = Path(path).expanduser()
    near: list[str] = []
    if place.parent.is_dir():
        names = [entry.name for entry in place.parent.iterdir() if not entry.name.startswith(".")]
        near = [str(place.with_name(name)) for name in difflib.get_close_matches(place.name, names, n=2, cutoff=0.7)]
    meant = f". Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"(looked from {Path.cwd()}){meant}"


def _import_module(where: str, reference: str, kind: str) -> ModuleType:
    advice = "Write path/to/file.py:name, or an installed module:name"
    if not where:
        raise ConfigError(f"the {kind} {reference!r} names no module. {advice}")
    try:
        return importlib.import_module(where)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"the {kind} {reference!r}: {type(error).__name__}: {error}. {advice}") from error


def _load_file(path: str, kind: str) -> ModuleType:
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise ConfigError(f"the {kind}'s file {path!r} doesn't exist {looked_for(path)}")
    key = (str(file), file.stat().st_mtime_ns)
    if key in _loaded:
        return _loaded[key]
    module_name = f"rllm_user_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"the {kind}'s file {path!r} can't be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, so that dataclasses and pickling inside it work; its folder so that it can import
    # its neighbours, as a script could.
    sys.modules[module_name] = module
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        line = f" in line {lines[-1]}" if lines else ""
        advice = "Install it, or mend the import" if isinstance(error, ImportError) else "Mend the file"
        raise ConfigError(
            f"the {kind}'s file {path!r} raised {type(error).__name__}{line} when it was loaded: {error}. {advice}"
        ) from error
    _loaded[key] = module
    return module
