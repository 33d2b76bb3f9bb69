"""Messages as templates want them: one text, no empty fields, tool arguments as an object or as text."""

__all__ = ["Message", "plain_messages", "tool_call"]

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rllm.errors import TemplateError

Message = Mapping[str, Any]


def plain_messages(messages: Sequence[Message], *, arguments_as_text: bool) -> list[dict[str, Any]]:
    """Messages in the form that the template wants. Raises TemplateError naming what can't be rendered.

    ``arguments_as_text``: a tool call's arguments are given as JSON text, else as an object; most templates fail, or
    write something odd, on the other.
    Content parts of type text are joined; fields that are None are left out; ``developer``, OpenAI's newer name of
    the system role, becomes ``system``.
    """
    return [
        _plain(message, f"message {n} (role {message.get('role')!r})", arguments_as_text)
        for n, message in enumerate(messages)
    ]


def tool_call(name: str, arguments: Mapping[str, Any], call_id: str) -> dict[str, Any]:
    """A tool call in OpenAI's form."""
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": call_id, "type": "function", "function": function}


def _plain(message: Message, where: str, as_text: bool) -> dict[str, Any]:
    plain = {key: value for key, value in message.items() if value is not None}
    if plain.get("role") == "developer":
        plain["role"] = "system"
    plain["content"] = _text(plain.get("content"), where)
    calls = plain.pop("tool_calls", None)
    if calls:
        plain["tool_calls"] = [_plain_call(call, where, as_text) for call in calls]
    return plain


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise TemplateError(f"{where}: its content is a {type(content).__name__}; send a text, or text parts")
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise TemplateError(f"{where}: it has a content part of type {kind!r}; this model reads only text parts")
        texts.append(part["text"])
    return "".join(texts)


def _plain_call(call: Any, where: str, as_text: bool) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TemplateError(f"{where}: a tool call has no function with a name: {call!r:.200}")
    arguments = function.get("arguments") or {}
    if as_text:
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
    elif isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise TemplateError(
                f"{where}: the arguments of its call of {function['name']!r} are no JSON, and the chat template needs "
                f"an object: {error}"
            ) from error
    return {**call, "function": {**function, "arguments": arguments}}
