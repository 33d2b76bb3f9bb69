"""What follows a reply in a template's own text, so that a conversation's stream goes on without rendering it again.

    whole rendering:   prompt │ reply │ end of turn, separator, new messages, header of the next reply
                              └ marker └──────────────────────── what a bridge is made of ───────────

A marker is rendered in the reply's place, and what the template writes after it is taken. The cut stands at a special
token, where tokenizers split whatever the text around it, so the ids of that part alone are its ids in the whole.
"""

__all__ = ["After", "BridgeFinder", "NoBridge"]

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rllm.errors import TemplateError
from rllm.rendering.messages import Message, tool_call
from rllm.rendering.template import MARKER, PROBE_CALL, PROBE_TOOL, ChatTemplate, asked
from rllm.rendering.text import special_names


class NoBridge(Exception):
    """Why a conversation can't be continued token by token."""


@dataclass(frozen=True)
class After:
    """What follows a reply."""

    ids: tuple[int, ...]
    """From the end-of-turn token to the header of the next reply."""
    n_closing: int
    """How many of them close the turn (its end, the separator) before anything new is said; at least 1."""

    def without(self, tail: Sequence[int]) -> list[int]:
        """The ids that are left when ``tail``, the sampled ones, already holds the beginning of the closing."""
        for n in range(min(self.n_closing, len(tail)), 0, -1):
            if tuple(tail[-n:]) == self.ids[:n]:
                return list(self.ids[n:])
        return list(self.ids)


class BridgeFinder:
    """Finds what follows a reply; checked against whole renderings when it is made."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._special = special_names(template.tokenizer)
        self.end_of_turn: int | None = None
        """The special token that the template puts behind a reply."""
        self.problem = self._problem_with([asked("one two")], {"role": "assistant", "content": "three four"}, None)
        """Why no conversation can be continued; None where plain ones can."""
        self.tool_problem = self.problem or self._problem_with_tools()
        """Why conversations with tools can't be continued; None where they can, and where the template knows none."""

    def after(
        self,
        messages: Sequence[Message],
        reply: Message,
        new_messages: Sequence[Message],
        tools: Sequence[Message] | None,
    ) -> After:
        """What follows ``reply`` when ``new_messages`` come next. Raises NoBridge, or TemplateError."""
        marker = _marker_for((messages, reply, new_messages, tools))
        marked = _marked(reply, marker)
        prompt = self._template.text(messages, tools, generation=True)
        whole = self._template.text([*messages, marked, *new_messages], tools, generation=True)
        alone = self._template.text([*messages, marked], tools, generation=False)
        before, _, behind = whole.rpartition(marker)
        _, found, closing = alone.rpartition(marker)
        if not before or not found:
            raise NoBridge("the template leaves out a reply")
        if not reply.get("tool_calls") and marker in before:
            raise NoBridge("the template writes a reply more than once")
        if not _without_reasoning(before).startswith(_without_reasoning(prompt)):
            raise NoBridge("the template writes what stands before a reply otherwise once the reply is there")
        at = self._call_ends_at(behind, closing) if reply.get("tool_calls") else 0
        ids, closing_ids = self._template.encode(behind[at:]), self._template.encode(closing[at:])
        if not ids or ids[0] not in self._special:
            raise NoBridge(f"no special token ends a reply, but {behind[at : at + 40]!r}")
        same = [a == b for a, b in zip(ids, closing_ids, strict=False)]
        return After(tuple(ids), max(1, same.index(False) if False in same else len(same)))

    def _call_ends_at(self, behind: str, closing: str) -> int:
        """Where the rest of a call ends in ``behind``: where it does in ``closing``, at the end of its turn."""
        ends = [
            self._special[i] for i in (self.end_of_turn, self._template.tokenizer.eos_token_id) if i in self._special
        ]
        found = [(closing.find(end), end) for end in ends if end in closing]
        if not found:
            raise NoBridge(f"no special token ends a turn that calls tools, but {closing[-40:]!r}")
        at, end = min(found)
        if not behind.startswith(closing[:at] + end):
            raise NoBridge("the template ends a turn that calls tools otherwise once something follows it")
        return at

    # -- the checks at the start

    def _problem_with(self, messages: Sequence[Message], reply: Message, tools: Any) -> str | None:
        try:
            first = self.after(messages, reply, [asked("five")], tools)
            self.end_of_turn = first.ids[0]
            turns: list[Message] = [*messages, reply, asked("five")]
            self._check(messages, reply, [asked("five")], tools)
            self._check(turns, {"role": "assistant", "content": "six,\nseven"}, [asked("eight\n\n9")], tools)
        except (NoBridge, TemplateError) as error:
            return str(error)
        return None

    def _problem_with_tools(self) -> str | None:
        """Turns that call one tool and, where a turn may, two; their results; a reply; another question."""
        template = self._template
        if not (template.writes_tools and template.writes_calls):
            return None
        name, arguments = PROBE_CALL
        for n_calls in (1, 2) if template.many_calls else (1,):
            calls = [tool_call(name, arguments, f"call0000{n}") for n in range(n_calls)]
            calling = {"role": "assistant", "content": None, "tool_calls": calls}
            results = [{"role": "tool", "tool_call_id": c["id"], "name": name, "content": "21 °C"} for c in calls]
            first, said = [asked("one two")], {"role": "assistant", "content": "six"}
            try:
                self._check(first, calling, results, [PROBE_TOOL])
                self._check([*first, calling, *results], said, [asked("seven")], [PROBE_TOOL])
            except (NoBridge, TemplateError) as error:
                return str(error)
        return None

    def _check(
        self,
        messages: Sequence[Message],
        reply: Message,
        new_messages: Sequence[Message],
        tools: Sequence[Message] | None,
    ) -> None:
        """What follows a reply has, in the whole with the reply's own text, the very ids that it has alone."""
        after = self.after(messages, reply, new_messages, tools)
        whole = self._template.encode(self._template.text([*messages, reply, *new_messages], tools, generation=True))
        if tuple(whole[-len(after.ids) :]) != after.ids:
            raise NoBridge("what follows a reply has other token ids within the whole")


def _marker_for(said: tuple[Any, ...]) -> str:
    """A marker that nothing said so far contains."""
    marker, text = MARKER, repr(said)
    while marker in text:
        marker += "7"
    return marker


def _marked(reply: Message, marker: str) -> Message:
    """The reply with the marker as its text; where it calls tools, as the last thing in its last call."""
    calls = reply.get("tool_calls")
    if not calls:
        return {"role": "assistant", "content": marker}
    # Names and ids stay: templates look up there which tool a result belongs to.
    function = {**calls[-1]["function"], "arguments": json.dumps({marker: marker})}
    return {"role": "assistant", "content": None, "tool_calls": [*calls[:-1], {**calls[-1], "function": function}]}


_REASONING = re.compile(r"<think>.*?</think>\s*|<think>\s*$", re.DOTALL)


def _without_reasoning(text: str) -> str:
    """Templates drop the reasoning of older turns, or open it in the header; the stream keeps what was sampled."""
    return _REASONING.sub("", text)
