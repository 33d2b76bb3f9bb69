"""A completion's text into content, reasoning and tool calls. A malformed call is given back as text, and counted."""

__all__ = ["Reply", "parse_reply"]

from collections.abc import Sequence
from dataclasses import dataclass

from rllm.rendering.messages import Message
from rllm.rendering.text import MarkedText
from rllm.rendering.tool_calls import Found, MalformedCall, Reader, ToolCall

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class Reply:
    """What an assistant's completion says."""

    content: str | None
    """None only where the reply is tool calls alone."""
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    malformed: str | None
    """Why something that looks like a tool call is none, and its text, which also stays in ``content``."""


def parse_reply(
    marked: MarkedText,
    reader: Reader | None,
    tools: Sequence[Message],
    *,
    reasons: bool,
    opened: bool,
    many_calls: bool,
) -> Reply:
    """Split a completion.

    ``reader`` finds tool calls, None looks for none; ``reasons``: the template knows <think>…</think>; ``opened``: the
    prompt ended with <think>; ``many_calls``: a turn may call several tools. One malformed call makes none of the
    turn's calls count: which of them was meant is not for us to say.
    """
    text = marked.text
    reasoning, start = _reasoning(marked, opened=opened) if reasons else (None, 0)
    found, malformed = Found((), ((0, len(text) - start),)), None
    if reader is not None:
        try:
            found = reader(text[start:], tools)
            if len(found.calls) > 1 and not many_calls:
                raise MalformedCall("the chat template takes one tool call a turn", text[start:])
        except MalformedCall as error:
            found, malformed = Found((), ((0, len(text) - start),)), str(error)
    content = "".join(marked.plain(start + a, start + b) for a, b in found.outside)
    if found.calls:
        return Reply(content.strip() or None, reasoning, found.calls, None)
    return Reply(content, reasoning, (), malformed)


def _reasoning(marked: MarkedText, *, opened: bool) -> tuple[str | None, int]:
    """The reasoning, and where the reply begins behind it. Reasoning that was cut off leaves no reply."""
    text = marked.text
    start = len(text) - len(text.lstrip())
    if text.startswith(OPEN, start):
        start += len(OPEN)
    elif opened:
        start = 0
    else:
        return None, 0
    end = text.find(CLOSE, start)
    reasoning = marked.plain(start, len(text) if end < 0 else end).strip("\n")
    if end < 0:
        return reasoning, len(text)
    behind = text[end + len(CLOSE) :]
    return reasoning or None, len(text) - len(behind.lstrip("\n"))
