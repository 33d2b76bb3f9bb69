"""The chat completions dialect: its requests read, its answers and streams written.

Token data stands at the root and in choices, never in a message: frameworks send messages back on the next turn.
"""

__all__ = ["CHAT"]

from collections.abc import Iterator, Sequence
from typing import Any

from rllm.gateway.dialects import Dialect
from rllm.gateway.errors import bad_request
from rllm.gateway.fields import Fields
from rllm.gateway.messages import check_messages, check_tools
from rllm.gateway.params import LARGEST_N, MOST_TOP_LOGPROBS, Request, wanted_of
from rllm.gateway.replies import Done, cut, finish_reason, least, root_of, shares, usage_of
from rllm.gateway.upstreams import Choice, TokenText
from rllm.types import Step


def _parse(fields: Fields, is_lax: bool) -> Request:
    messages = check_messages(fields.value("messages"), reads_text_only=not is_lax)
    model = fields.text("model")
    if model is None:
        raise bad_request("model is missing; any name is the policy's, but for those of other routes", "model")
    tools = fields.value("tools")
    choice = fields.value("tool_choice")
    if not is_lax and choice not in (None, "auto", "none"):
        raise bad_request(
            f"tool_choice={choice!r} can't be honoured: the policy calls tools as it will. Use 'auto' or 'none'",
            "tool_choice",
            "unsupported_value",
        )
    wants_logprobs = fields.flag("logprobs")
    top_logprobs = fields.integer("top_logprobs", 0, MOST_TOP_LOGPROBS)
    if top_logprobs is not None and not wants_logprobs:
        raise bad_request("top_logprobs needs logprobs=true", "top_logprobs")
    options = fields.value("stream_options")
    if not isinstance(options, dict | None):
        raise bad_request("stream_options must be an object", "stream_options")
    request = Request(
        body=fields.body,
        model=model,
        stream=fields.flag("stream"),
        include_usage=bool((options or {}).get("include_usage")),
        n=fields.integer("n", 1, LARGEST_N) or 1,
        wants_logprobs=wants_logprobs,
        wanted=wanted_of(fields, ("max_completion_tokens", "max_tokens"), top_logprobs or 0),
        messages=messages,
        tools=tuple(tools or ()) if is_lax else check_tools(tools),
        may_call_tools=choice != "none",
    )
    if not is_lax:
        fields.refuse_rest()
    return request


def _body(done: Done) -> dict[str, Any]:
    root = root_of(done, "chat.completion")
    choices = [_choice(s, c) for s, c in zip(done.steps, done.answer.choices, strict=True)]
    if done.prompt_ids:
        root["prompt_token_ids"] = list(done.prompt_ids)
    return {**root, "choices": choices, "usage": usage_of(done)}


def _choice(step: Step, choice: Choice) -> dict[str, Any]:
    body: dict[str, Any] = {
        "index": step.choice,
        "message": step.message,
        "logprobs": choice.logprobs_body if choice.tokens is None else _logprobs(choice.tokens),
        "finish_reason": finish_reason(step),
    }
    return body | ({"token_ids": list(step.completion_ids)} if step.completion_ids else {})


def _logprobs(tokens: Sequence[TokenText]) -> dict[str, Any]:
    content = [
        _token(t.text, t.raw, t.logprob) | {"top_logprobs": [_token(*alternative) for alternative in t.top]}
        for t in tokens
    ]
    return {"content": content, "refusal": None}


def _token(text: str, raw: bytes, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": least(logprob), "bytes": list(raw)}


def _chunks(done: Done) -> Iterator[dict[str, Any]]:
    """Role first, then reasoning, content and tool calls in pieces, and the finish reason with the ids at last."""
    root = root_of(done, "chat.completion.chunk")
    extra: dict[str, Any] = {"prompt_token_ids": list(done.prompt_ids)} if done.prompt_ids else {}
    for step, choice in zip(done.steps, done.answer.choices, strict=True):
        for piece in _pieces(step, choice):
            yield {**root, **extra, "choices": [{"index": step.choice, **piece}]}
            extra = {}


def _pieces(step: Step, choice: Choice) -> Iterator[dict[str, Any]]:
    message = step.message or {}
    pieces = cut(message.get("content") or "")
    parts = shares(pieces, choice.tokens or ())

    def piece(delta: dict[str, Any], part: Sequence[TokenText] = ()) -> dict[str, Any]:
        return {"delta": delta, "logprobs": _logprobs(part) if part else None, "finish_reason": None}

    yield piece({"role": "assistant", "content": ""})
    if message.get("reasoning_content"):
        yield piece({"reasoning_content": message["reasoning_content"]})
    for text, part in zip(pieces, parts, strict=False):
        yield piece({"content": text}, part)
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        named = {"name": function["name"], "arguments": ""}
        yield piece({"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": named}]})
        for text in cut(function["arguments"]):
            yield piece({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
    last = piece({}, parts[-1]) | {"finish_reason": finish_reason(step)}
    if choice.logprobs_body is not None:
        last["logprobs"] = choice.logprobs_body
    yield last | ({"token_ids": list(step.completion_ids)} if step.completion_ids else {})


CHAT = Dialect("chat", "chatcmpl-", True, _parse, _body, _chunks)
