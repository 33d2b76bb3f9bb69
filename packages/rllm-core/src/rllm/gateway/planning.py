"""Which recorded step a request continues, and what its prompt is: found on the loop, made in a worker thread."""

__all__ = ["Found", "Reading", "Routes", "found_in", "read_request", "remember"]

from dataclasses import dataclass

import numpy as np

from rllm.gateway.conversation import Match, Node, Outline, outline_of
from rllm.gateway.dialects import Dialect
from rllm.gateway.fields import Fields, read_json
from rllm.gateway.params import Request
from rllm.gateway.sessions import OpenSession
from rllm.gateway.upstreams import Choice, Continued, Upstream
from rllm.types import Step


@dataclass(frozen=True)
class Routes:
    """Who answers which model name."""

    policy: Upstream
    frozen: dict[str, Upstream]

    def find(self, model: object) -> tuple[str, Upstream]:
        """The route's name and its upstream; every name that is no route's is the policy's."""
        upstream = self.frozen.get(model) if isinstance(model, str) else None
        if upstream is None or upstream is self.policy:
            return "policy", self.policy
        return str(model), upstream


@dataclass(frozen=True)
class Reading:
    """A request, checked, and what it is found by."""

    request: Request
    route: str
    upstream: Upstream
    outline: Outline | None
    """Of a chat request."""
    raw: bytes
    """A raw prompt's text as UTF-8, or its ids as int32."""

    @property
    def content(self) -> bytes:
        """What stands for the prompt where the upstream has no ids for it."""
        return self.raw if self.outline is None else self.outline.tools + self.outline.chain[-1]


def read_request(body: bytes, dialect: Dialect, routes: Routes) -> Reading:
    """Read and check a body; called in a worker thread. Raises ApiError 400."""
    fields = Fields(read_json(body))
    route, upstream = routes.find(fields.body.get("model"))
    request = dialect.parse(fields, upstream.takes_all_parameters)
    if dialect.is_chat:
        return Reading(request, route, upstream, outline_of(request.messages, request.tools), b"")
    raw = request.prompt.encode() if isinstance(request.prompt, str) else _bytes_of(request.prompt)
    return Reading(request, route, upstream, None, raw)


@dataclass(frozen=True)
class Found:
    """What a request continues."""

    node: Node | None = None
    n_shared: int = 0
    """In messages, characters or ids, as ``Continued`` has it."""
    break_reason: str | None = None

    def continued(self) -> Continued | None:
        """For the upstream."""
        if self.node is None:
            return None
        return Continued(self.node.stream(), self.node.completion_ids, self.n_shared)


def found_in(opened: OpenSession, reading: Reading, role: str, span_id: str | None) -> Found:
    """The recorded step of the session that a request continues, if any."""
    if reading.outline is not None:
        match: Match = opened.conversations.find(reading.outline, route=reading.route, role=role, span_id=span_id)
        return Found(match.node, match.n_shared, match.break_reason)
    raw = opened.raw[reading.route]
    is_text = isinstance(reading.request.prompt, str)
    found = (raw.texts if is_text else raw.streams).longest(reading.raw)
    length = 0 if found is None else found[0]
    asked_before = raw.prompts.longest(reading.raw)
    is_edited = asked_before is not None and asked_before[0] > length and asked_before[1] == role
    n_shared = len(reading.raw[:length].decode()) if is_text else length // 4
    return Found(None if found is None else found[1], n_shared, "edited history" if is_edited else None)


def remember(
    opened: OpenSession, reading: Reading, parent: Node | None, n_shared: int, step: Step, choice: Choice
) -> None:
    """Keep an answered step as something that later requests may continue."""
    outline = reading.outline
    extended = None if outline is None else outline.extended(choice.message)
    node = Node(
        key=step.key,
        route=reading.route,
        role=step.role,
        span_id=step.span_id,
        parent=parent,
        added=() if extended is None else extended.messages[n_shared if parent is not None else 0 :],
        call_ids=() if extended is None else extended.call_ids[-1],
        tools=b"" if outline is None else outline.tools,
        added_ids=step.added_ids,
        completion_ids=step.completion_ids,
    )
    raw = opened.raw[reading.route]
    stream = node.stream()
    if stream:
        raw.streams.add(_bytes_of(stream), node)
    if extended is not None:
        opened.conversations.add(node, extended)
        return
    raw.prompts.add(reading.raw, step.role)
    if isinstance(reading.request.prompt, str):
        text = choice.exact_text if choice.exact_text is not None else choice.message["content"] or ""
        raw.texts.add(reading.raw + text.encode(), node)


def _bytes_of(tokens: tuple[int, ...]) -> bytes:
    return np.asarray(tokens, dtype="<i4").tobytes()
