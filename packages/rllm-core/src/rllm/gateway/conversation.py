"""Which recorded conversation a request goes on with, so that its exact tokens are continued and not rendered again.

Frameworks send the history back changed in form: keys of tool arguments reordered, ``content: null`` for an empty one,
whitespace stripped, tool-call ids of their own. Two messages that mean the same have the same digest here.
"""

__all__ = ["Conversations", "Match", "Node", "Outline", "outline_of"]

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm.gateway.messages import Message


@dataclass(frozen=True)
class Outline:
    """A conversation reduced to digests."""

    messages: tuple[bytes, ...]
    """One digest for each message."""
    chain: tuple[bytes, ...]
    """At k, the digest of the first k messages together."""
    tools: bytes
    is_evidence: tuple[bool, ...]
    """Whether the message, met again, shows that a conversation goes on: all but system messages do."""
    is_reply: tuple[bool, ...]
    """Whether it is an assistant's, and says anything."""
    call_ids: tuple[tuple[str, ...], ...]
    """The ids of the tool calls in each message, as they were sent."""

    def __len__(self) -> int:
        return len(self.messages)

    def extended(self, reply: Message) -> "Outline":
        """With one more message."""
        return _outline([reply], self)


@dataclass(frozen=True)
class Node:
    """One recorded step: the conversation up to and with its reply, as what it adds to its parent's."""

    key: str
    """Of the step."""
    route: str
    role: str
    span_id: str | None
    parent: "Node | None"
    added: tuple[bytes, ...]
    """Digests of the messages beyond the parent's conversation, the reply's last; empty for a raw completion."""
    call_ids: tuple[str, ...]
    """Of the reply's tool calls."""
    tools: bytes
    added_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]

    def path(self) -> "list[Node]":
        """From the root to this node."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def stream(self) -> tuple[int, ...]:
        """All its tokens: prompt and completion ids."""
        return tuple(i for node in self.path() for i in (*node.added_ids, *node.completion_ids))


@dataclass(frozen=True)
class Match:
    """What a request continues."""

    node: Node | None = None
    n_shared: int = 0
    """How many of the request's messages the node's conversation holds."""
    break_reason: str | None = None
    """Why it does not continue what the session's role has said last, where it seems to want to."""


class Conversations:
    """The chat conversations of one session."""

    def __init__(self) -> None:
        self._by_chain: dict[tuple[str, bytes], list[Node]] = {}
        self._leaves: dict[tuple[str, str], dict[str, Node]] = {}
        """By route and role: the nodes that no other of the role continues, by key."""

    def add(self, node: Node, outline: Outline) -> None:
        """Remember a step; ``outline`` is its whole conversation with the reply."""
        self._by_chain.setdefault((node.route, outline.chain[-1]), []).append(node)
        leaves = self._leaves.setdefault((node.route, node.role), {})
        if node.parent is not None:
            leaves.pop(node.parent.key, None)
        leaves[node.key] = node

    def find(self, outline: Outline, *, route: str, role: str, span_id: str | None) -> Match:
        """The longest recorded conversation of the route that the request extends, with the same tools.

        Where there are several (the choices of one call said the same), the one of the same span, of the same role,
        with the tool-call ids that came back, and at last the oldest.
        """
        found = Match()
        other_tools = False
        for k in range(len(outline) - 1, 0, -1):
            nodes = self._by_chain.get((route, outline.chain[k - 1]), ())
            fitting = [node for node in nodes if node.tools == outline.tools]
            if fitting:
                ids = outline.call_ids[k - 1]
                best = max(fitting, key=lambda n: (n.span_id == span_id, n.role == role, n.call_ids == ids))
                found = Match(best, k)
                break
            other_tools = other_tools or any(node.role == role for node in nodes)
        if other_tools:
            return Match(found.node, found.n_shared, "tools changed")
        leaves = self._leaves.get((route, role), {}).values()
        if any(_is_edited(outline, found, leaf) for leaf in leaves):
            return Match(found.node, found.n_shared, "edited history")
        return found


def _is_edited(outline: Outline, found: Match, leaf: Node) -> bool:
    """Whether the request is the recorded conversation of ``leaf`` with changes, and no new one or a fork of it.

    Signs of it, beyond what both share: the request has something else where the conversation has its reply, or has
    a message that also stands there; or it shares no beginning, but has a reply that was sampled there.
    """
    recorded: list[bytes] = []
    replies: set[int] = set()
    for node in leaf.path():
        recorded += node.added
        replies.add(len(recorded) - 1)
    shared = 0
    while shared < min(len(recorded), len(outline)) and recorded[shared] == outline.messages[shared]:
        shared += 1
    if shared < found.n_shared or shared == len(recorded):
        return False
    if shared == 0:
        sampled = {recorded[i] for i in replies}
        return any(outline.is_reply[i] and digest in sampled for i, digest in enumerate(outline.messages))
    if shared in replies and len(outline) > shared:
        return True
    later = set(recorded[shared:])
    return any(outline.is_evidence[i] and outline.messages[i] in later for i in range(shared, len(outline)))


def outline_of(messages: Sequence[Message], tools: Sequence[Message]) -> Outline:
    """The digests of a request's conversation.

    >>> a, b = {"role": "user", "content": "x "}, {"role": "user", "content": [{"type": "text", "text": "x"}]}
    >>> outline_of([a], []) == outline_of([b], [])
    True
    """
    return _outline(messages, Outline((), (), _digest(list(tools)), (), (), ()))


def _outline(messages: Sequence[Message], before: Outline) -> Outline:
    digests, chain = list(before.messages), list(before.chain)
    evidence, replies, call_ids = list(before.is_evidence), list(before.is_reply), list(before.call_ids)
    # Ids of tool calls are compared by their place: a framework may have put its own in, everywhere alike.
    places: dict[str, int] = {}
    for ids in call_ids:
        _number(ids, places)
    for message in messages:
        ids = tuple(str(call.get("id")) for call in message.get("tool_calls") or ())
        _number(ids, places)
        digests.append(_digest(_canonical(message, places)))
        chain.append(hashlib.blake2b((chain[-1] if chain else b"") + digests[-1]).digest())
        says_something = bool(ids) or bool(message.get("content"))
        evidence.append(message["role"] not in ("system", "developer") and says_something)
        replies.append(message["role"] == "assistant" and says_something)
        call_ids.append(ids)
    return Outline(tuple(digests), tuple(chain), before.tools, tuple(evidence), tuple(replies), tuple(call_ids))


def _number(ids: Sequence[str], places: dict[str, int]) -> None:
    for k in ids:
        places.setdefault(k, len(places))


def _canonical(message: Message, places: Mapping[str, int]) -> list[Any]:
    """What a message means. An assistant's name and reasoning are left out: frameworks add the one and drop the
    other."""
    role = "system" if message["role"] == "developer" else message["role"]
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    answered = message.get("tool_call_id") or ""
    name = None if role == "assistant" else message.get("name") or None
    return [role, _content(message.get("content")), calls, places.get(answered, answered), name]


def _content(content: Any) -> Any:
    if isinstance(content, list) and any(part.get("type") not in ("text", "refusal") for part in content):
        return content
    if isinstance(content, list):
        content = "".join(part.get("text") or part.get("refusal") or "" for part in content)
    return (content or "").strip()


def _call(call: Mapping[str, Any]) -> Any:
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments, str):
        return {name: value for name, value in call.items() if name != "id"}
    try:
        return [function.get("name"), "json", json.loads(arguments)]
    except (ValueError, RecursionError):
        return [function.get("name"), "text", arguments.strip()]


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode()).digest()
