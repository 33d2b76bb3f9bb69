"""The completions dialect: a raw prompt, as text or token ids, goes on."""

__all__ = ["COMPLETIONS"]

from collections.abc import Iterator, Sequence
from typing import Any

from rllm.gateway.dialects import Dialect
from rllm.gateway.errors import bad_request
from rllm.gateway.fields import Fields
from rllm.gateway.params import LARGEST_N, MOST_TOP_LOGPROBS, Request, wanted_of
from rllm.gateway.replies import Done, cut, finish_reason, least, root_of, shares, usage_of
from rllm.gateway.upstreams import Choice, TokenText
from rllm.types import Step


def _parse(fields: Fields, is_lax: bool) -> Request:
    prompt = _prompt(fields.value("prompt"))
    model = fields.text("model")
    if model is None:
        raise bad_request("model is missing; any name is the policy's, but for those of other routes", "model")
    top_logprobs = fields.integer("logprobs", 0, MOST_TOP_LOGPROBS)
    options = fields.value("stream_options")
    if not isinstance(options, dict | None):
        raise bad_request("stream_options must be an object", "stream_options")
    request = Request(
        body=fields.body,
        model=model,
        stream=fields.flag("stream"),
        include_usage=bool((options or {}).get("include_usage")),
        n=fields.integer("n", 1, LARGEST_N) or 1,
        wants_logprobs=top_logprobs is not None,
        wanted=wanted_of(fields, ("max_tokens",), top_logprobs or 0),
        prompt=prompt,
    )
    if not is_lax:
        fields.refuse_rest()
    return request


def _prompt(prompt: Any) -> str | tuple[int, ...]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt:
        if all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < 2**31 for i in prompt):
            return tuple(prompt)
        if all(isinstance(part, str | list) for part in prompt):
            raise bad_request(f"prompt holds {len(prompt)} prompts; send one with each request", "prompt")
    raise bad_request("prompt must be a text or a list of token ids, and not empty", "prompt")


def _body(done: Done) -> dict[str, Any]:
    root = root_of(done, "text_completion")
    choices = [_choice(s, c) for s, c in zip(done.steps, done.answer.choices, strict=True)]
    if done.prompt_ids:
        root["prompt_token_ids"] = list(done.prompt_ids)
    return {**root, "choices": choices, "usage": usage_of(done)}


def _choice(step: Step, choice: Choice) -> dict[str, Any]:
    tokens = choice.tokens
    body: dict[str, Any] = {
        "index": step.choice,
        "text": _text(step),
        "logprobs": choice.logprobs_body if tokens is None else _logprobs(tokens, 0),
        "finish_reason": finish_reason(step),
    }
    return body | ({"token_ids": list(step.completion_ids)} if step.completion_ids else {})


def _text(step: Step) -> str:
    return (step.message or {}).get("content") or ""


def _logprobs(tokens: Sequence[TokenText], offset: int) -> dict[str, Any]:
    """The form of this dialect: lists of equal length; ``offset`` is where the first token begins in the text."""
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    tops: list[dict[str, float]] = []
    for token in tokens:
        best: dict[str, float] = {}
        for text, _, logprob in token.top:
            best.setdefault(text, least(logprob))  # two ids may read the same; the likelier came first
        tops.append(best)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [least(token.logprob) for token in tokens],
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def _chunks(done: Done) -> Iterator[dict[str, Any]]:
    """The text in pieces, and the finish reason with the ids at last."""
    root = root_of(done, "text_completion")
    extra: dict[str, Any] = {"prompt_token_ids": list(done.prompt_ids)} if done.prompt_ids else {}
    for step, choice in zip(done.steps, done.answer.choices, strict=True):
        pieces = cut(_text(step))
        parts = shares(pieces, choice.tokens or ())
        offset = 0
        for text, part in zip([*pieces, ""], parts, strict=True):
            piece: dict[str, Any] = {
                "index": step.choice,
                "text": text,
                "logprobs": _logprobs(part, offset) if part else None,
                "finish_reason": None,
            }
            offset += sum(len(token.text) for token in part)
            if part is parts[-1]:
                piece["finish_reason"] = finish_reason(step)
                piece["logprobs"] = choice.logprobs_body or piece["logprobs"]
                if step.completion_ids:
                    piece["token_ids"] = list(step.completion_ids)
            yield {**root, **extra, "choices": [piece]}
            extra = {}


COMPLETIONS = Dialect("completions", "cmpl-", False, _parse, _body, _chunks)
