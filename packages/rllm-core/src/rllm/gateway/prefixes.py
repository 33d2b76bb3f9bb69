"""Finds the longest of many recorded byte strings that a new one begins with, without keeping any of them."""

__all__ = ["PrefixIndex"]

import hashlib
from bisect import insort
from typing import Generic, TypeVar

T = TypeVar("T")


class PrefixIndex(Generic[T]):
    """Values under byte strings, of which only length and digest are kept.

    >>> index: PrefixIndex[str] = PrefixIndex()
    >>> index.add(b"ab", "short"); index.add(b"abcd", "long"); index.add(b"abx", "other")
    >>> index.longest(b"abcde"), index.longest(b"abcd"), index.longest(b"x")
    ((4, 'long'), (2, 'short'), None)
    """

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._values: dict[tuple[int, bytes], T] = {}

    def add(self, data: bytes, value: T) -> None:
        """Keep ``value`` under ``data``; where the same was added before, the older value stays."""
        key = (len(data), hashlib.blake2b(data).digest())
        if key not in self._values:
            self._values[key] = value
            if len(data) not in self._lengths:
                insort(self._lengths, len(data))

    def longest(self, data: bytes) -> tuple[int, T] | None:
        """The longest entry that ``data`` begins with and goes beyond, and its length in bytes."""
        found: tuple[int, T] | None = None
        running = hashlib.blake2b()
        read = 0
        for length in self._lengths:
            if length >= len(data):
                break
            running.update(data[read:length])
            read = length
            key = (length, running.copy().digest())
            if key in self._values:
                found = (length, self._values[key])
        return found
