"""Replacing methods of other people's classes, so that it happens once and is undone exactly.

One table of patches drives both directions; ``instrument.py`` and ``context.py`` each have one.
"""

__all__ = ["Patch", "PatchSet"]

import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_INHERITED = object()
"""The class had no such attribute of its own: undoing means deleting ours."""


@dataclass(frozen=True)
class Patch:
    """``owner.name`` becomes ``wrap(original)``, which must carry ``__wrapped__`` (as ``functools.wraps`` does)."""

    owner: type
    name: str
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]]


class PatchSet:
    """A table of patches, all on or all off.

    Where somebody else has wrapped the same method on top of us, switching off leaves both in place, for theirs can't
    be taken apart. A wrapper must therefore ask ``is_on`` and pass everything through while it is off.
    """

    def __init__(self, patches: Callable[[], Sequence[Patch]]) -> None:
        """``patches`` makes the table when it is first needed, so that what it patches is imported late."""
        self._make_patches = patches
        self._patches: Sequence[Patch] = ()
        self._before: list[object] = []
        self._wrappers: list[Callable[..., Any] | None] = []
        self._lock = threading.RLock()
        self.is_on = False

    def install(self) -> None:
        """Switch on; a second time changes nothing."""
        with self._lock:
            if self.is_on:
                return
            if not self._patches:
                self._patches = self._make_patches()
                self._before = [_INHERITED] * len(self._patches)
                self._wrappers = [None] * len(self._patches)
            for index, patch in enumerate(self._patches):
                current = getattr(patch.owner, patch.name)
                if _is_in_chain(self._wrappers[index], current):
                    continue
                self._before[index] = vars(patch.owner).get(patch.name, _INHERITED)
                wrapper = patch.wrap(current)
                setattr(patch.owner, patch.name, wrapper)
                self._wrappers[index] = wrapper
            self.is_on = True

    def uninstall(self) -> None:
        """Switch off and restore each attribute that is still ours; a second time changes nothing."""
        with self._lock:
            if not self.is_on:
                return
            self.is_on = False
            for index, patch in enumerate(self._patches):
                if vars(patch.owner).get(patch.name, _INHERITED) is not self._wrappers[index]:
                    continue
                if self._before[index] is _INHERITED:
                    delattr(patch.owner, patch.name)
                else:
                    setattr(patch.owner, patch.name, self._before[index])
                self._wrappers[index] = None


def _is_in_chain(wrapper: Callable[..., Any] | None, function: Callable[..., Any]) -> bool:
    """Whether ``wrapper`` is ``function`` or somewhere among the functions that it wraps."""
    return wrapper is not None and inspect.unwrap(function, stop=lambda inner: inner is wrapper) is wrapper
