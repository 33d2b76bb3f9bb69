"""A completion's text into reply, reasoning and tool calls. A malformed call is given back as text, never repaired."""

__all__ = ["Reply", "ToolCall", "ToolFormat", "parse_reply", "tool_format"]

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

ToolFormat = Literal["hermes", "function_tags", "llama_json"]
"""``hermes``: <tool_call>{"name": …, "arguments": …}</tool_call>; ``function_tags``: <function=name>… ;
``llama_json``: the whole reply is {"name": …, "parameters": …}."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool as the model wrote it."""

    name: str
    arguments: str
    """A JSON object, as text."""


@dataclass(frozen=True)
class Reply:
    """What an assistant's completion says."""

    content: str | None
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    malformed: str | None
    """Why something that looks like a tool call is none; its text stays in ``content``."""


def tool_format(template: str) -> ToolFormat:
    """Which form of tool calls a chat template teaches; ``hermes`` where it shows none."""
    if "<function=" in template:
        return "function_tags"
    if "<tool_call>" in template:
        return "hermes"
    if "<|python_tag|>" in template or '"parameters"' in template:
        return "llama_json"
    return "hermes"


def parse_reply(text: str, special: Collection[str], format: ToolFormat | None) -> Reply:
    """Split a completion's text, in which ``special`` tokens stand by name; they are left out of what is returned.

    ``format`` None looks for no tool calls.
    """
    reasoning, text = _split_reasoning(text)
    calls: list[ToolCall] = []
    malformed: str | None = None
    if format is not None:
        rest, calls, malformed = _READERS[format](text)
        text = rest if malformed is None else text
    for token in special:
        text = text.replace(token, "")
    return Reply(None if calls and not text else text, reasoning, tuple(calls), malformed)


def _split_reasoning(text: str) -> tuple[str | None, str]:
    head, closed, rest = text.partition("</think>")
    if closed:
        return head.removeprefix("<think>").strip("\n"), rest.lstrip("\n")
    if text.startswith("<think>"):
        return text.removeprefix("<think>").strip("\n"), ""
    return None, text


def _object(value: Any, keys: Sequence[str]) -> ToolCall | str:
    """The call that a parsed JSON value is, or why it is none."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return 'a tool call must be an object with a "name"'
    arguments = next((value[k] for k in keys if k in value), {})
    if not isinstance(arguments, dict):
        return f"the arguments of {value['name']!r} are no object"
    return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False))


Read = tuple[str, list[ToolCall], str | None]


def _hermes(text: str) -> Read:
    calls: list[ToolCall] = []
    rest = ""
    while True:
        before, opened, after = text.partition("<tool_call>")
        rest += before
        if not opened:
            break
        body, closed, text = after.partition("</tool_call>")
        if not closed:
            return "", [], "a tool call is not closed"
        try:
            found = _object(json.loads(body), ("arguments", "parameters"))
        except json.JSONDecodeError as error:
            return "", [], f"a tool call is no JSON: {error}"
        if isinstance(found, str):
            return "", [], found
        calls.append(found)
    return rest.strip() if calls else rest, calls, None


_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def _function_tags(text: str) -> Read:
    calls: list[ToolCall] = []
    for match in _FUNCTION.finditer(text):
        name, body = match.groups()
        parameters = _PARAMETER.findall(body)
        if parameters:
            arguments: dict[str, Any] = {}
            for key, raw in parameters:
                try:
                    arguments[key] = json.loads(raw)
                except json.JSONDecodeError:
                    arguments[key] = raw
            calls.append(ToolCall(name, json.dumps(arguments, ensure_ascii=False)))
        elif body.strip():
            try:
                found = _object({"name": name, "arguments": json.loads(body)}, ("arguments",))
            except json.JSONDecodeError as error:
                return "", [], f"the arguments of {name!r} are no JSON: {error}"
            if isinstance(found, str):
                return "", [], found
            calls.append(found)
        else:
            calls.append(ToolCall(name, "{}"))
    rest = re.sub(r"</?tool_call>", "", _FUNCTION.sub("", text))
    if "<function=" in rest:
        return "", [], "a tool call is not closed"
    return rest.strip() if calls else text, calls, None


def _llama_json(text: str) -> Read:
    body = text.strip().removeprefix("<|python_tag|>").strip()
    if not body.startswith("{"):
        return text, [], None
    calls: list[ToolCall] = []
    for part in re.split(r";\s*(?=\{)", body):
        try:
            found = _object(json.loads(part), ("parameters", "arguments"))
        except json.JSONDecodeError as error:
            return text, [], f"a tool call is no JSON: {error}"
        if isinstance(found, str):
            return text, [], found
        calls.append(found)
    return "", calls, None


_READERS: dict[ToolFormat, Callable[[str], Read]] = {
    "hermes": _hermes,
    "function_tags": _function_tags,
    "llama_json": _llama_json,
}
