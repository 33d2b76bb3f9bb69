"""Which recorded conversation a request goes on with: the exact stream is continued, never rendered again.

Messages that come back changed in form but not in meaning are the same: the order of keys in tool arguments, spaces
around the text, ``content: null`` for an empty one, and what the gateway itself added.
"""

__all__ = ["Branch", "Conversations", "Match", "canonical"]

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]
Key = tuple[str, ...]


@dataclass(frozen=True)
class Branch:
    """A recorded step and the conversation up to and with its reply."""

    step_key: str
    role: str
    keys: Key
    """The canonical form of each message, the reply's last."""
    tools: str
    messages: tuple[Message, ...]
    """Before the reply."""
    reply: Message
    stream: tuple[int, ...]
    """Prompt and completion ids."""
    tail: tuple[int, ...]
    """The completion ids alone."""


@dataclass(frozen=True)
class Match:
    """What a request continues, and which of its messages are new; or why it continues nothing."""

    branch: Branch | None
    new_messages: tuple[Message, ...]
    break_reason: str | None = None


class Conversations:
    """The conversations of one session."""

    def __init__(self) -> None:
        self._by_keys: dict[tuple[Key, str], Branch] = {}
        self._branches: list[Branch] = []

    def add(self, branch: Branch) -> None:
        """Remember a reply as something that may be continued."""
        self._by_keys[branch.keys, branch.tools] = branch
        self._branches.append(branch)

    def find(self, messages: Sequence[Message], tools: str, role: str) -> Match:
        """The longest recorded conversation that ``messages`` extend, with the same tools."""
        keys = tuple(canonical(m) for m in messages)
        for length in range(len(keys) - 1, 0, -1):
            branch = self._by_keys.get((keys[:length], tools))
            if branch is not None:
                return Match(branch, tuple(messages[length:]))
        return Match(None, tuple(messages), self._why_new(keys, tools, role))

    def _why_new(self, keys: Key, tools: str, role: str) -> str | None:
        """None where this starts a conversation; else what kept it from going on with an earlier one."""
        if not any(json.loads(k)[0] == "assistant" for k in keys):
            return None
        own = [b for b in self._branches if b.role == role]
        if not own:
            return None
        if any(keys[: len(b.keys)] == b.keys for b in own):
            return "tools changed"
        return "edited history"

    def find_ids(self, ids: Sequence[int]) -> Branch | None:
        """The recorded stream that a raw prompt begins with, the longest."""
        asked = tuple(ids)
        fitting = [b for b in self._branches if len(b.stream) < len(asked) and asked[: len(b.stream)] == b.stream]
        return max(fitting, key=lambda b: len(b.stream), default=None)


def canonical(message: Message) -> str:
    """A message's meaning as text: two messages with the same are the same to the model.

    >>> canonical({"role": "user", "content": None}) == canonical({"role": "user", "content": " "})
    True
    """
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    calls = [
        [call["function"]["name"], _arguments(call["function"].get("arguments", ""))]
        for call in message.get("tool_calls") or ()
    ]
    return json.dumps([message.get("role"), (content or "").strip(), calls, message.get("tool_call_id")])


def _arguments(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except json.JSONDecodeError:
        return text
