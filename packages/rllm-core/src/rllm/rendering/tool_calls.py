"""Tool calls in the text of a reply, in each form that templates teach. What is no well-formed call is never mended."""

__all__ = ["FORMS", "MARKUP", "Found", "MalformedCall", "Reader", "ToolCall", "ToolForm"]

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from rllm.rendering.messages import Message

ToolForm = Literal["hermes", "function_tags", "llama_json"]
"""``hermes``: <tool_call>{"name": …, "arguments": …}</tool_call> (Hermes, Qwen, SmolLM);
``function_tags``: <function=name><parameter=x>… or <function=name>{…} (Qwen3-Coder, Llama's own tools);
``llama_json``: the whole reply is {"name": …, "parameters": …} (Llama 3)."""
MARKUP = frozenset({"<tool_call>", "</tool_call>", "<|python_tag|>"})
"""Tokens that mark a call; in some vocabularies they are special."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool as the model wrote it."""

    name: str
    arguments: str
    """A JSON object, as text."""


@dataclass(frozen=True)
class Found:
    """The calls of a reply, and the spans (start, end) of its text that are none."""

    calls: tuple[ToolCall, ...]
    outside: tuple[tuple[int, int], ...]


class MalformedCall(Exception):
    """Why something that looks like a tool call is none, and its text."""

    def __init__(self, why: str, raw: str) -> None:
        shown = raw if len(raw) <= 200 else f"{raw[:200]}… ({len(raw)} characters)"
        super().__init__(f"{why}: {shown!r}")


Reader = Callable[[str, Sequence[Message]], Found]
"""``reader(text, tools)``; raises MalformedCall."""


# --- JSON as it is ----------------------------------------------------------------------------------------------


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("an object has a key twice")
    return made


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique)
_SPACE = re.compile(r"\s*")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _json_at(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that begins at ``at``, and where it ends. Raises ValueError."""
    try:
        return _DECODER.raw_decode(text, _skip(text, at))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _call(name: Any, arguments: Any, raw: str) -> ToolCall:
    if not isinstance(name, str) or not name:
        raise MalformedCall('a tool call has no "name"', raw)
    if not isinstance(arguments, Mapping):
        raise MalformedCall(f"the arguments of {name!r} are no object", raw)
    text = json.dumps(arguments, ensure_ascii=False)
    try:
        (name + text).encode()
    except UnicodeEncodeError:
        raise MalformedCall("a tool call holds half a character (a lone surrogate)", raw) from None
    return ToolCall(name, text)


def _object_call(value: Any, keys: Sequence[str], raw: str) -> ToolCall:
    if not isinstance(value, Mapping):
        raise MalformedCall("a tool call is no object", raw)
    arguments = next((value[key] for key in keys if key in value), None)
    return _call(value.get("name"), arguments, raw)


# --- the forms --------------------------------------------------------------------------------------------------

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def _hermes(text: str, tools: Sequence[Message]) -> Found:
    calls: list[ToolCall] = []
    outside: list[tuple[int, int]] = []
    at = 0
    while (start := text.find(OPEN, at)) >= 0:
        raw = text[start:]
        if CLOSE not in raw:
            raise MalformedCall("a tool call is not closed", raw)
        try:
            value, end = _json_at(text, start + len(OPEN))
        except ValueError as error:
            raise MalformedCall(f"a tool call is no JSON ({error})", raw) from None
        end = _skip(text, end)
        if not text.startswith(CLOSE, end):
            raise MalformedCall("something else follows the JSON of a tool call", raw)
        calls.append(_object_call(value, ["arguments"], text[start : end + len(CLOSE)]))
        outside.append((at, start))
        at = end + len(CLOSE)
    outside.append((at, len(text)))
    if any(CLOSE in text[a:b] for a, b in outside):
        raise MalformedCall("a tool call is closed that was never opened", text)
    return Found(tuple(calls), tuple(outside))


PYTHON_TAG = "<|python_tag|>"
_LOOKS_LIKE_A_CALL = re.compile(r'\{\s*("type"\s*:\s*"function"\s*,\s*)?"name"\s*:')


def _llama_json(text: str, tools: Sequence[Message]) -> Found:
    tag = text.find(PYTHON_TAG)
    start = 0 if tag < 0 else tag + len(PYTHON_TAG)
    begin = _skip(text, start)
    if tag < 0 and not _LOOKS_LIKE_A_CALL.match(text, begin):
        return Found((), ((0, len(text)),))
    calls: list[ToolCall] = []
    at = begin
    while True:
        try:
            value, end = _json_at(text, at)
        except ValueError as error:
            raise MalformedCall(f"a tool call is no JSON ({error})", text) from None
        keys = ["parameters", "arguments"]
        if tag < 0 and not calls and not any(key in value for key in keys):
            return Found((), ((0, len(text)),))  # an answer in JSON that happens to have a name
        calls.append(_object_call(value, keys, text))
        at = _skip(text, end)
        if at == len(text):
            return Found(tuple(calls), ((0, max(tag, 0)),))
        if text[at] != ";":
            raise MalformedCall("something else follows the JSON of a tool call", text)
        at += 1


_FUNCTION = re.compile(r"(?:<tool_call>\s*)?<function=([^>\s]+)>(.*?)</function>(?:\s*</tool_call>)?", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)
_REMAINS = re.compile(r"<function=|</function>|</?tool_call>|<parameter=|</parameter>")


def _function_tags(text: str, tools: Sequence[Message]) -> Found:
    calls: list[ToolCall] = []
    outside: list[tuple[int, int]] = []
    at = 0
    for match in _FUNCTION.finditer(text):
        name, body = match.groups()
        calls.append(_call(name, _arguments(name, body, match[0], tools), match[0]))
        outside.append((at, match.start()))
        at = match.end()
    outside.append((at, len(text)))
    for start, end in outside:
        remains = _REMAINS.search(text, start, end)
        if remains is not None:
            raise MalformedCall(f"a tool call is not whole at {remains[0]!r}", text[remains.start() :])
    return Found(tuple(calls), tuple(outside))


def _arguments(name: str, body: str, raw: str, tools: Sequence[Message]) -> Any:
    if body.lstrip().startswith("{"):
        try:
            value, end = _json_at(body, 0)
        except ValueError as error:
            raise MalformedCall(f"the arguments of {name!r} are no JSON ({error})", raw) from None
        if body[end:].strip():
            raise MalformedCall(f"something else follows the arguments of {name!r}", raw)
        return value
    arguments: dict[str, Any] = {}
    at = _skip(body, 0)
    while at < len(body):
        match = _PARAMETER.match(body, at)
        if match is None:
            raise MalformedCall(f"what stands in the call of {name!r} is no parameter", raw)
        key, value = match.groups()
        if key in arguments:
            raise MalformedCall(f"the call of {name!r} has the parameter {key!r} twice", raw)
        arguments[key] = _typed(value, _types(name, key, tools), f"the parameter {key!r} of {name!r}", raw)
        at = match.end()
    return arguments


_LITERALS = {"True": True, "False": False, "None": None}
"""Templates write these as Jinja prints them."""


def _typed(value: str, types: frozenset[str], where: str, raw: str) -> Any:
    """A parameter's value: text unless its schema says that it is none."""
    if "null" in types and value in ("null", "None"):
        return None
    if not types or "string" in types:
        return value
    if value in _LITERALS:
        return _LITERALS[value]
    try:
        parsed, end = _json_at(value, 0)
    except ValueError as error:
        raise MalformedCall(f"{where} is of type {'/'.join(sorted(types))} and no JSON ({error})", raw) from None
    if value[end:].strip():
        raise MalformedCall(f"something else follows {where}", raw)
    return parsed


def _types(name: str, key: str, tools: Sequence[Message]) -> frozenset[str]:
    """The JSON types that a parameter may have; none where the tool's schema says nothing."""
    for tool in tools:
        function = tool.get("function", {})
        if function.get("name") == name:
            schema = (function.get("parameters") or {}).get("properties", {}).get(key, {})
            kinds = [s.get("type") for s in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ()))]
            flat = [k for kind in kinds for k in (kind if isinstance(kind, list) else [kind])]
            return frozenset(k for k in flat if k is not None)
    return frozenset()


FORMS: Mapping[ToolForm, Reader] = {
    "hermes": _hermes,
    "function_tags": _function_tags,
    "llama_json": _llama_json,
}
