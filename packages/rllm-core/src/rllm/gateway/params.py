"""What both dialects ask, and how it is drawn: the run's sampling in training, the request's in evaluation."""

__all__ = ["Request", "Wanted", "resolve_sampling", "wanted_of"]

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rllm.gateway.fields import Fields
from rllm.gateway.messages import Message
from rllm.types import SamplingParams

LARGEST_N = 128
MOST_TOP_LOGPROBS = 20


@dataclass(frozen=True)
class Wanted:
    """What a request asks of the draw; None where it says nothing."""

    draw: Mapping[str, Any]
    """temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty and seed, those that it names."""
    max_tokens: int | None
    stop: tuple[str, ...] | None
    top_logprobs: int


@dataclass(frozen=True)
class Request:
    """One call, checked, in either dialect."""

    body: Mapping[str, Any]
    """As it was sent."""
    model: str
    stream: bool
    include_usage: bool
    n: int
    wants_logprobs: bool
    wanted: Wanted
    messages: tuple[Message, ...] = ()
    """As they were sent; empty in the completions dialect."""
    tools: tuple[Message, ...] = ()
    may_call_tools: bool = False
    """Whether tool calls are looked for in the reply."""
    prompt: str | tuple[int, ...] = ""
    """Text or token ids, of the completions dialect."""


def wanted_of(fields: Fields, max_tokens_names: tuple[str, ...], top_logprobs: int) -> Wanted:
    """Read the fields of the draw. Raises ApiError 400, also for what the run's sampling would replace."""
    draw = {
        "temperature": fields.number("temperature", 0, math.inf),
        "top_p": fields.number("top_p", math.ulp(0), 1),
        "top_k": fields.integer("top_k", -1),
        "min_p": fields.number("min_p", 0, math.nextafter(1, 0)),
        "presence_penalty": fields.number("presence_penalty", -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "seed": fields.integer("seed", -(2**63), 2**63 - 1),
    }
    if draw["top_k"] == -1:
        draw["top_k"] = 0  # how vLLM writes "off"
    limits = [fields.integer(name, 1) for name in max_tokens_names]
    limit = next((value for value in limits if value is not None), None)
    return Wanted({k: v for k, v in draw.items() if v is not None}, limit, fields.stop(), top_logprobs)


def resolve_sampling(
    wanted: Wanted, run: SamplingParams, *, is_training: bool
) -> tuple[SamplingParams, tuple[str, ...]]:
    """How the call is drawn, and which of the request's fields the run's replaced.

    In training all of ``Wanted.draw`` is the run's, and a longer ``max_tokens`` than the run's is cut to it: agents
    hard-code such values, and a group drawn at temperature 0 has no signal. In evaluation the request wins.

    >>> resolve_sampling(Wanted({"temperature": 0.0}, 9999, ("x",), 0), SamplingParams(), is_training=True)[1]
    ('max_tokens', 'temperature')
    """
    values: dict[str, Any] = {"top_logprobs": wanted.top_logprobs}
    overridden: set[str] = set()
    if wanted.stop is not None:
        values["stop"] = wanted.stop
    if not is_training:
        values |= wanted.draw
    else:
        overridden = {name for name, value in wanted.draw.items() if value != getattr(run, name)}
    if wanted.max_tokens is not None:
        if is_training and wanted.max_tokens > run.max_tokens:
            overridden.add("max_tokens")
        else:
            values["max_tokens"] = wanted.max_tokens
    return SamplingParams.model_validate(run.model_dump() | values), tuple(sorted(overridden))
