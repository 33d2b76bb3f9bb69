"""What a dialect of the API is to the gateway: reading its requests, writing its answers."""

__all__ = ["Dialect"]

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rllm.gateway.fields import Fields
from rllm.gateway.params import Request
from rllm.gateway.replies import Done


@dataclass(frozen=True)
class Dialect:
    """One way to ask."""

    name: str
    """As steps carry it."""
    id_prefix: str
    """Of call ids."""
    is_chat: bool
    """Whether it has messages; else a raw prompt."""
    parse: Callable[[Fields, bool], Request]
    """From a body; the flag says that the upstream judges parameters and contents by itself. Raises ApiError 400."""
    body: Callable[[Done], dict[str, Any]]
    """The whole answer."""
    chunks: Callable[[Done], Iterator[dict[str, Any]]]
    """The same answer as a stream's events, usage aside."""
