"""Finished calls as OpenAI's response bodies, and the same bodies cut into the pieces of a stream.

Token ids stand at the root (``prompt_token_ids``) and in choices (``token_ids``), never inside a message: frameworks
send those back on the next turn.
"""

__all__ = ["body_of", "pieces_of"]

from collections.abc import Iterator
from typing import Any

from rllm.gateway.calls import Done
from rllm.gateway.params import Common
from rllm.gateway.upstreams import Choice
from rllm.rendering import token_strings
from rllm.types import Step

PIECE = 24
"""Characters of a stream's piece: the answer is whole when it is cut, so this is only form."""


def body_of(done: Done, request: Common, *, is_chat: bool) -> dict[str, Any]:
    """The whole response."""
    choices = [_choice(done, step, choice, request, is_chat) for step, choice in _pairs(done)]
    return {**_root(done, request, "chat.completion" if is_chat else "text_completion"), "choices": choices,
            "usage": _usage(done)}  # fmt: skip


def pieces_of(done: Done, request: Common, *, is_chat: bool) -> Iterator[dict[str, Any]]:
    """The response as a stream's events: role, text, tool calls by index, finish reason, and usage last if asked."""
    root = _root(done, request, "chat.completion.chunk" if is_chat else "text_completion")
    for step, choice in _pairs(done):
        whole = _choice(done, step, choice, request, is_chat)
        extra = {k: whole[k] for k in ("token_ids",) if k in whole}
        if is_chat:
            deltas = list(_deltas(whole["message"]))
            for n, delta in enumerate(deltas):
                piece: dict[str, Any] = {"index": step.choice, "delta": delta, "finish_reason": None}
                if n == 0 and request.wants_logprobs:
                    piece["logprobs"] = whole["logprobs"]
                yield {**root, "choices": [piece | (extra if n == 0 else {})]}
            last: dict[str, Any] = {"index": step.choice, "delta": {}, "finish_reason": whole["finish_reason"]}
            yield {**root, "choices": [last]}
        else:
            text = whole["text"]
            cuts = [text[i : i + PIECE] for i in range(0, len(text), PIECE)] or [""]
            for n, cut in enumerate(cuts):
                is_last = n == len(cuts) - 1
                piece = {"index": step.choice, "text": cut, "logprobs": whole["logprobs"] if n == 0 else None,
                         "finish_reason": whole["finish_reason"] if is_last else None}  # fmt: skip
                yield {**root, "choices": [piece | (extra if n == 0 else {})]}
    if request.include_usage:
        yield {**root, "choices": [], "usage": _usage(done)}


def _pairs(done: Done) -> Iterator[tuple[Step, Choice]]:
    return zip(done.steps, done.answer.choices, strict=True)


def _root(done: Done, request: Common, kind: str) -> dict[str, Any]:
    root: dict[str, Any] = {
        "id": done.call_id,
        "object": kind,
        "created": done.created,
        "model": request.model,
        "system_fingerprint": f"rllm:{done.call_id}",
    }
    if done.policy is not None:
        root["prompt_token_ids"] = list(done.prompt_ids)
    return root


def _usage(done: Done) -> dict[str, int]:
    prompt, completion = done.answer.prompt_tokens, done.answer.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _choice(done: Done, step: Step, choice: Choice, request: Common, is_chat: bool) -> dict[str, Any]:
    message = dict(step.message or {})
    finish = "stop" if choice.finish_reason == "aborted" else choice.finish_reason
    body: dict[str, Any] = {"index": step.choice, "finish_reason": finish, "logprobs": None}
    if is_chat:
        body["message"] = message
    else:
        body["text"] = message.get("content") or ""
    if step.completion_ids:
        body["token_ids"] = list(step.completion_ids)
    if request.wants_logprobs and choice.completion is not None and done.policy is not None:
        body["logprobs"] = _chat_logprobs(done, step, choice) if is_chat else _raw_logprobs(done, step, choice)
    return body


def _chat_logprobs(done: Done, step: Step, choice: Choice) -> dict[str, Any]:
    assert done.policy is not None
    tokenizer = done.policy.info.tokenizer

    def entry(text: str, raw: bytes, logprob: float) -> dict[str, Any]:
        return {"token": text, "bytes": list(raw), "logprob": logprob}

    strings = token_strings(tokenizer, step.completion_ids)
    tops = choice.completion.top_logprobs if choice.completion is not None else ()
    content: list[dict[str, Any]] = []
    for at, ((text, raw), logprob) in enumerate(zip(strings, step.logprobs, strict=True)):
        alternatives = tops[at] if tops else ()
        named = token_strings(tokenizer, [i for i, _ in alternatives])
        top = [entry(t, b, lp) for (t, b), (_, lp) in zip(named, alternatives, strict=True)]
        content.append({**entry(text, raw, logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _raw_logprobs(done: Done, step: Step, choice: Choice) -> dict[str, Any]:
    assert done.policy is not None
    tokenizer = done.policy.info.tokenizer
    strings = [text for text, _ in token_strings(tokenizer, step.completion_ids)]
    tops = choice.completion.top_logprobs if choice.completion is not None else ()
    offsets, at = [], 0
    for text in strings:
        offsets.append(at)
        at += len(text)
    named = [
        dict(zip((t for t, _ in token_strings(tokenizer, [i for i, _ in alts])), (lp for _, lp in alts), strict=True))
        for alts in tops
    ]
    return {
        "tokens": strings,
        "token_logprobs": list(step.logprobs),
        "top_logprobs": named or None,
        "text_offset": offsets,
    }


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    reasoning = message.get("reasoning_content")
    if reasoning:
        yield {"reasoning_content": reasoning}
    text = message.get("content") or ""
    for start in range(0, len(text), PIECE):
        yield {"content": text[start : start + PIECE]}
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        yield {"tool_calls": [{"index": index, "id": call["id"], "type": "function",
                               "function": {"name": function["name"], "arguments": ""}}]}  # fmt: skip
        yield {"tool_calls": [{"index": index, "function": {"arguments": function["arguments"]}}]}
