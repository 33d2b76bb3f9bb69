"""Messages and tools of a chat request: checked against OpenAI's form, and as templates want them."""

__all__ = ["Message", "check_messages", "check_tools", "plain_message", "text_of"]

from collections.abc import Mapping
from typing import Any

from rllm.gateway.errors import bad_request

Message = Mapping[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")


def check_messages(messages: Any, *, reads_text_only: bool) -> tuple[Message, ...]:
    """The messages as they were sent. Raises ApiError 400 that names the place.

    ``reads_text_only`` False takes any content, for an upstream that checks it itself.
    """
    if not isinstance(messages, list) or not messages:
        raise bad_request("messages must be a list of at least one message", "messages")
    for i, message in enumerate(messages):
        _check_message(message, f"messages[{i}]", reads_text_only)
    return tuple(messages)


def _check_message(message: Any, where: str, reads_text_only: bool) -> None:
    if not isinstance(message, dict):
        raise bad_request(f"{where} must be an object", where)
    role = message.get("role")
    if role not in ROLES:
        raise bad_request(f"{where}.role is {role!r}; it must be one of {', '.join(ROLES)}", f"{where}.role")
    if not reads_text_only:
        _check_outer_form(message, where)
        return
    content = message.get("content")
    if content is None:
        if role != "assistant":
            raise bad_request(f"{where}.content is missing", f"{where}.content")
    elif isinstance(content, list):
        for j, part in enumerate(content):
            _check_part(part, f"{where}.content[{j}]")
    elif not isinstance(content, str):
        raise bad_request(f"{where}.content must be a text or a list of parts", f"{where}.content")
    for name in ("name", "reasoning_content"):
        if not isinstance(message.get(name, ""), str | None):
            raise bad_request(f"{where}.{name} must be a text", f"{where}.{name}")
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise bad_request(f"{where}.tool_call_id must name the call that it answers", f"{where}.tool_call_id")
    _check_calls(message.get("tool_calls"), f"{where}.tool_calls")


def _check_outer_form(message: Message, where: str) -> None:
    """What is needed to tell messages apart; the rest is for the upstream to judge."""
    for name in ("content", "tool_calls"):
        value = message.get(name)
        is_list = isinstance(value, list) and all(isinstance(part, dict) for part in value)
        if value is not None and not is_list and not (name == "content" and isinstance(value, str)):
            raise bad_request(f"{where}.{name} must be a list of objects", f"{where}.{name}")


def _check_part(part: Any, where: str) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("text", "refusal"):
        raise bad_request(f"{where} is of type {kind!r}; the policy reads text only", where, "unsupported_value")
    if not isinstance(part.get(kind), str):
        raise bad_request(f"{where}.{kind} must be a text", where)


def _check_calls(calls: Any, where: str) -> None:
    if calls is None:
        return
    if not isinstance(calls, list):
        raise bad_request(f"{where} must be a list", where)
    for j, call in enumerate(calls):
        place = f"{where}[{j}]"
        if not isinstance(call, dict) or call.get("type", "function") != "function":
            raise bad_request(f"{place} must be an object of type 'function'", place)
        if not isinstance(call.get("id"), str):
            raise bad_request(f"{place}.id must be a text", f"{place}.id")
        function = call.get("function")
        if not isinstance(function, dict):
            raise bad_request(f"{place}.function must be an object", f"{place}.function")
        for name in ("name", "arguments"):
            if not isinstance(function.get(name), str):
                raise bad_request(f"{place}.function.{name} must be a text", f"{place}.function.{name}")


def check_tools(tools: Any) -> tuple[Message, ...]:
    """The tools as they were sent. Raises ApiError 400 that names the place.

    ``strict`` is taken and not enforced: arguments are what the model wrote, and malformed ones stay text.
    """
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise bad_request("tools must be a list", "tools")
    for i, tool in enumerate(tools):
        where = f"tools[{i}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise bad_request(f"{where} must be an object of type 'function'", where, "unsupported_value")
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise bad_request(f"{where}.function needs a name", f"{where}.function")
        for name, kind, wanted in (("description", str, "a text"), ("parameters", dict, "an object")):
            if not isinstance(function.get(name), kind | None):
                raise bad_request(f"{where}.function.{name} must be {wanted}", f"{where}.function.{name}")
    return tuple(tools)


def text_of(content: Any) -> str:
    """The text of a message's content, whichever form it has.

    >>> text_of([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), text_of(None)
    ('ab', '')
    """
    if isinstance(content, list):
        return "".join(str(part.get("text") or part.get("refusal") or "") for part in content)
    return content or ""


def plain_message(message: Message) -> dict[str, Any]:
    """A checked message as templates want it: text content, no empty fields, nothing that only OpenAI knows."""
    role = "system" if message["role"] == "developer" else message["role"]
    plain: dict[str, Any] = {"role": role, "content": text_of(message.get("content"))}
    for name in ("tool_calls", "tool_call_id", "name", "reasoning_content"):
        if message.get(name):
            plain[name] = message[name]
    return plain
