"""A request's parameters: each is honoured, is known to change no text, or is refused by its name."""

__all__ = ["ChatRequest", "CompletionRequest", "parse_chat", "parse_completion", "session_sampling"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rllm.gateway.errors import bad_request
from rllm.types import SamplingParams

HARMLESS = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
     "parallel_tool_calls", "reasoning_effort", "verbosity", "return_token_ids", "modalities", "extra_body"}
)  # fmt: skip
"""Can't change the text that this policy samples; accepted."""
SAMPLED = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed")
"""What a request may ask of the draw; in training the run's own replace them."""
CHAT_FIELDS = frozenset(
    {"model", "messages", "tools", "tool_choice", "stream", "stream_options", "n", "stop", "logprobs", "top_logprobs",
     "max_tokens", "max_completion_tokens", "response_format", *SAMPLED}
)  # fmt: skip
COMPLETION_FIELDS = frozenset(
    {"model", "prompt", "stream", "stream_options", "n", "stop", "logprobs", "max_tokens", *SAMPLED}
)
ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


@dataclass(frozen=True)
class Common:
    """What both dialects ask."""

    model: str
    stream: bool
    include_usage: bool
    n: int
    sampling: SamplingParams
    overridden: tuple[str, ...]
    wants_logprobs: bool


@dataclass(frozen=True)
class ChatRequest(Common):
    """A chat completion."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class CompletionRequest(Common):
    """A raw completion; the prompt is text, or token ids."""

    prompt: str | tuple[int, ...]


def parse_chat(body: Mapping[str, Any], run: SamplingParams, *, is_training: bool) -> ChatRequest:
    """Raises ApiError 400 that names the parameter."""
    _refuse_unknown(body, CHAT_FIELDS)
    form = body.get("response_format")
    if form is not None and form != {"type": "text"}:
        raise bad_request("only response_format {'type': 'text'} is served", "response_format", "unsupported_value")
    messages = _messages(body.get("messages"))
    tools = _tools(body.get("tools"))
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise bad_request(
            f"tool_choice {choice!r} can't be honoured; only 'auto' and 'none' are", "tool_choice", "unsupported_value"
        )
    wants = bool(body.get("logprobs"))
    top = body.get("top_logprobs")
    if top is not None and not wants:
        raise bad_request("top_logprobs needs logprobs=true", "top_logprobs")
    sampling, overridden = session_sampling(body, run, is_training=is_training, top_logprobs=top or 0)
    return ChatRequest(
        **_common(body, sampling, overridden, wants),
        messages=messages,
        tools=() if choice == "none" else tools,
    )


def parse_completion(body: Mapping[str, Any], run: SamplingParams, *, is_training: bool) -> CompletionRequest:
    """Raises ApiError 400 that names the parameter."""
    _refuse_unknown(body, COMPLETION_FIELDS)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, list):
        if not prompt or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in prompt):
            raise bad_request("prompt must be a text or a list of token ids, one prompt a request", "prompt")
        prompt = tuple(prompt)
    if not isinstance(prompt, (str, tuple)) or not prompt:
        raise bad_request("prompt must be a non-empty text or list of token ids", "prompt")
    top = body.get("logprobs")
    if top is not None and (not isinstance(top, int) or isinstance(top, bool) or not 0 <= top <= 20):
        raise bad_request(f"logprobs must be an integer from 0 to 20, got {top!r}", "logprobs")
    sampling, overridden = session_sampling(body, run, is_training=is_training, top_logprobs=top or 0)
    return CompletionRequest(**_common(body, sampling, overridden, top is not None), prompt=prompt)


def session_sampling(
    body: Mapping[str, Any], run: SamplingParams, *, is_training: bool, top_logprobs: int
) -> tuple[SamplingParams, tuple[str, ...]]:
    """How to draw: in training as the run says, in evaluation as the request says where it does; and what of the
    request was replaced. A limit of tokens and stop strings are always the request's, within the run's limit."""
    values: dict[str, Any] = {}
    overridden: list[str] = []
    for name in SAMPLED:
        asked = body.get(name)
        if asked is None:
            continue
        if name == "top_k" and asked == -1:
            asked = 0
        if not is_training:
            values[name] = asked
        elif asked != getattr(run, name):
            overridden.append(name)
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    if limit is not None:
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise bad_request(f"the limit of tokens must be a positive integer, got {limit!r}", "max_tokens")
        values["max_tokens"] = min(limit, run.max_tokens) if is_training else limit
        if is_training and limit > run.max_tokens:
            overridden.append("max_tokens")
    values["stop"] = _stop(body.get("stop"))
    values["top_logprobs"] = top_logprobs
    try:
        return SamplingParams.model_validate(run.model_dump() | values), tuple(overridden)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise bad_request(f"{name}={first['input']!r} won't do: {first['msg']}", name) from None


def _common(
    body: Mapping[str, Any], sampling: SamplingParams, overridden: tuple[str, ...], wants_logprobs: bool
) -> dict[str, Any]:
    n = body.get("n")
    n = 1 if n is None else n
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= 128:
        raise bad_request(f"n must be an integer from 1 to 128, got {n!r}", "n")
    model = body.get("model")
    if not isinstance(model, str):
        raise bad_request(f"model must be a text, got {model!r}", "model")
    options = body.get("stream_options") or {}
    if not isinstance(options, Mapping):
        raise bad_request("stream_options must be an object", "stream_options")
    return {
        "model": model,
        "stream": bool(body.get("stream")),
        "include_usage": bool(options.get("include_usage")),
        "n": n,
        "sampling": sampling,
        "overridden": overridden,
        "wants_logprobs": wants_logprobs,
    }


def _refuse_unknown(body: Mapping[str, Any], known: frozenset[str]) -> None:
    for name, value in body.items():
        if name in known or name in HARMLESS or value is None:
            continue
        raise bad_request(f"the parameter {name!r} can't be honoured here; leave it out", name, "unsupported_parameter")


def _stop(stop: Any) -> tuple[str, ...]:
    if stop is None:
        return ()
    found = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, list) else None
    if found is None or not all(isinstance(s, str) and s for s in found) or len(found) > 16:
        raise bad_request("stop must be a non-empty text or a list of up to 16 of them", "stop")
    return found


def _messages(messages: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(messages, list) or not messages:
        raise bad_request("messages must be a non-empty list", "messages")
    return tuple(_message(m, f"messages[{i}]") for i, m in enumerate(messages))


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise bad_request(f"{where} must be an object", where)
    role = message.get("role")
    if role not in ROLES:
        raise bad_request(f"{where}.role is {role!r}; it must be one of {', '.join(sorted(ROLES))}", f"{where}.role")
    content = message.get("content")
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                kind = part.get("type") if isinstance(part, Mapping) else part
                raise bad_request(
                    f"{where}.content has a part of type {kind!r}; this policy reads text", f"{where}.content"
                )
    elif content is not None and not isinstance(content, str):
        raise bad_request(f"{where}.content must be a text or a list of parts", f"{where}.content")
    for call in _tool_calls(message.get("tool_calls"), where):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise bad_request(f"{where}.tool_calls needs a function with a name", f"{where}.tool_calls")
        if not isinstance(function.get("arguments", ""), (str, Mapping)):
            raise bad_request(f"{where}.tool_calls: arguments must be text", f"{where}.tool_calls")
    return dict(message) | ({"role": "system"} if role == "developer" else {})


def _tool_calls(calls: Any, where: str) -> Sequence[Any]:
    if calls is None:
        return ()
    if not isinstance(calls, list):
        raise bad_request(f"{where}.tool_calls must be a list", f"{where}.tool_calls")
    return calls


def _tools(tools: Any) -> tuple[dict[str, Any], ...]:
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise bad_request("tools must be a list", "tools")
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise bad_request(f"tools[{i}] must be a function with a name", f"tools[{i}]")
    return tuple(dict(t) for t in tools)
