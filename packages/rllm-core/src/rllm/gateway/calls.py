"""One call, from request to recorded steps: budget, prompt, upstream, record; the same for both dialects.

The step is in the store before the agent has its answer.
"""

__all__ = ["Call", "Done", "perform"]

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm.errors import BackendError, ContextLengthError, RLLMError
from rllm.gateway.conversation import Branch, Match, canonical
from rllm.gateway.errors import ApiError, bad_request
from rllm.gateway.params import Common
from rllm.gateway.sessions import OpenSession
from rllm.gateway.upstreams import Answer, Asked, Choice, PolicyUpstream, Upstream
from rllm.trace import SIDE_CALL, Span
from rllm.types import SamplingParams, Step


@dataclass(frozen=True)
class Call:
    """What is asked, whichever dialect asked it."""

    request: Common
    dialect: str
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    raw_prompt: str | tuple[int, ...] | None
    span: Span | None
    upstream: Upstream


@dataclass(frozen=True)
class Done:
    """A call that was answered and recorded."""

    call_id: str
    created: int
    prompt_ids: tuple[int, ...]
    answer: Answer
    steps: tuple[Step, ...]
    policy: PolicyUpstream | None


@dataclass(frozen=True)
class _Prompt:
    ids: tuple[int, ...]
    added_ids: tuple[int, ...]
    parent: str | None
    new_messages: tuple[Mapping[str, Any], ...]
    break_reason: str | None


Write = Callable[[Step], Awaitable[None]]
"""Records a step durably."""


async def perform(call: Call, opened: OpenSession, write: Write, run_seed: int) -> Done:
    """Answer ``call``. ``write(step)`` records a step durably. Raises ApiError; whatever happens is recorded."""
    state = opened.state
    _check_budget(opened)
    call_id = f"call-{secrets.token_hex(12)}"
    index = state.calls
    state.calls += 1
    role = "main" if call.span is None else call.span.role
    started, clock = time.time(), time.monotonic()
    policy = call.upstream if isinstance(call.upstream, PolicyUpstream) else None
    prompt = _Prompt((), (), None, call.messages, None)
    sampling = call.request.sampling

    def step_of(choice: int, **fields: Any) -> Step:
        return Step(
            call_id=call_id,
            choice=choice,
            session_id=opened.session.id,
            index=index,
            parent=prompt.parent,
            role=role,
            span_id=None if call.span is None else call.span.id,
            route=call.upstream.route,
            model=call.request.model,
            dialect=call.dialect,
            added_messages=tuple(dict(m) for m in prompt.new_messages),
            tools=tuple(dict(t) for t in call.tools),
            added_ids=prompt.added_ids,
            sampling=sampling,
            overridden=call.request.overridden,
            break_reason=prompt.break_reason,
            started_at=started,
            duration_s=time.monotonic() - clock,
            **fields,
        )

    try:
        if policy is not None:
            prompt = await asyncio.to_thread(_prompt_of, call, opened, policy, role)
            sampling = _seeded(sampling, opened, role, prompt.ids, run_seed, call.request.overridden)
            sampling = _within_budget(sampling, opened)
        asked = Asked(call.request.model, call.messages, call.tools, prompt.ids, sampling, call.request.n)
        answer = await call.upstream.answer(asked)
    except asyncio.CancelledError:
        await write(step_of(0, status="cancelled", untrainable="call cancelled", error="the client went away"))
        raise
    except ContextLengthError as error:
        state.context_length_hit = True
        await write(step_of(0, status="error", untrainable="call error", error=str(error)))
        raise bad_request(str(error), "messages", "context_length_exceeded") from error
    except ApiError as error:
        if error.status >= 500:
            state.upstream_error = error.message
        await write(step_of(0, status="error", untrainable="call error", error=error.message))
        raise
    except RLLMError as error:
        await write(step_of(0, status="error", untrainable="call error", error=str(error)))
        if isinstance(error, BackendError):
            state.upstream_error = str(error)
            raise ApiError(503, str(error), kind="server_error") from error
        raise bad_request(str(error)) from error
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        state.upstream_error = message
        await write(step_of(0, status="error", untrainable="call error", error=message))
        raise ApiError(500, f"the upstream failed: {message}", kind="server_error") from error

    if policy is not None:
        state.completed_calls += 1
        state.sampled_tokens += answer.completion_tokens
    steps = tuple(
        step_of(k, **_fields_of(choice, answer, call, opened, sampling, k)) for k, choice in enumerate(answer.choices)
    )
    for step, choice in zip(steps, answer.choices, strict=True):
        await write(step)
        if choice.completion is not None:
            _remember(opened, call, prompt, step, choice)
    return Done(call_id, int(started), prompt.ids, answer, steps, policy)


def _check_budget(opened: OpenSession) -> None:
    state = opened.state
    if opened.max_calls is not None and state.calls >= opened.max_calls:
        state.limit_hit = "call_limit"
        raise ApiError(
            403, f"this rollout may make {opened.max_calls} model calls (rollout.max_calls), and has made them",
            kind="budget_exhausted", code="call_limit",
        )  # fmt: skip
    if opened.max_tokens_total is not None and state.sampled_tokens >= opened.max_tokens_total:
        state.limit_hit = "token_limit"
        raise ApiError(
            403, f"this rollout may sample {opened.max_tokens_total} tokens (rollout.max_tokens_total), and has",
            kind="budget_exhausted", code="token_limit",
        )  # fmt: skip


def _within_budget(sampling: SamplingParams, opened: OpenSession) -> SamplingParams:
    if opened.max_tokens_total is None:
        return sampling
    left = opened.max_tokens_total - opened.state.sampled_tokens
    return sampling if left >= sampling.max_tokens else sampling.model_copy(update={"max_tokens": left})


def _prompt_of(call: Call, opened: OpenSession, policy: PolicyUpstream, role: str) -> _Prompt:
    """The exact ids to continue; runs in a thread, for long conversations take a while to render."""
    if call.raw_prompt is not None:
        ids = tuple(policy.renderer.encode(call.raw_prompt)) if isinstance(call.raw_prompt, str) else call.raw_prompt
        vocab = policy.info.vocab_size
        if any(i >= vocab for i in ids):
            raise bad_request(f"prompt holds the token id {max(ids)}; the vocabulary has {vocab}", "prompt")
        branch = opened.conversations.find_ids(ids)
        if branch is None:
            return _Prompt(ids, ids, None, (), None)
        return _Prompt(ids, ids[len(branch.stream) :], branch.step_key, (), None)
    tools = json.dumps(call.tools, sort_keys=True)
    match: Match = opened.conversations.find(call.messages, tools, role)
    branch = match.branch
    if branch is not None:
        bridge = policy.renderer.bridge(
            branch.messages, branch.reply, match.new_messages, call.tools or None, branch.tail
        )
        if bridge is not None:
            added = tuple(bridge)
            return _Prompt((*branch.stream, *added), added, branch.step_key, match.new_messages, None)
    ids = tuple(policy.renderer.render(call.messages, call.tools or None))
    reason = match.break_reason if branch is None else "template"
    return _Prompt(ids, ids, None, call.messages, reason)


def _seeded(
    sampling: SamplingParams,
    opened: OpenSession,
    role: str,
    ids: Sequence[int],
    run_seed: int,
    overridden: Sequence[str],
) -> SamplingParams:
    """The call's seed: from the run's seed and what the call is, never from when it arrived."""
    digest = hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()
    key = f"{role}|{digest}"
    occurrence = opened.occurrences[key]
    opened.occurrences[key] += 1
    s = opened.session
    asked = None if "seed" in overridden else sampling.seed
    text = f"{run_seed}|{asked}|{opened.phase}|{s.task_id}|{s.sample}|{key}|{occurrence}"
    if asked is not None and not s.is_training:
        return sampling
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
    return sampling.model_copy(update={"seed": seed})


def _fields_of(
    choice: Choice, answer: Answer, call: Call, opened: OpenSession, sampling: SamplingParams, k: int
) -> dict[str, Any]:
    message = dict(choice.message)
    if message.get("tool_calls"):
        message["tool_calls"] = [
            {"id": tc.get("id") or f"call_{_short(sampling.seed, k, j)}", **tc}
            for j, tc in enumerate(message["tool_calls"])
        ]
    fields: dict[str, Any] = {
        "message": message,
        "finish_reason": choice.finish_reason,
        "prompt_tokens": answer.prompt_tokens,
        "untrainable": _untrainable(choice, answer, call, opened),
    }
    completion = choice.completion
    if completion is not None:
        fields |= {
            "completion_ids": tuple(completion.ids.tolist()),
            "logprobs": tuple(completion.logprobs.tolist()),
            "versions": tuple(completion.versions.tolist()),
        }
    return fields


def _short(*parts: object) -> str:
    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:16]


def _untrainable(choice: Choice, answer: Answer, call: Call, opened: OpenSession) -> str | None:
    if answer.untrainable is not None:
        return answer.untrainable
    if call.span is None and opened.has_adapter_spans:
        return SIDE_CALL
    completion = choice.completion
    if completion is None:
        return "no token ids"
    if completion.finish_reason == "aborted":
        return "aborted"
    if completion.distribution != "full":
        return "modified distribution"
    return None


def _remember(opened: OpenSession, call: Call, prompt: _Prompt, step: Step, choice: Choice) -> None:
    reply = step.message or {}
    # A raw prompt has no messages to be found by; only its ids can be continued.
    chat = (*(canonical(m) for m in call.messages), canonical(reply))
    keys = chat if call.raw_prompt is None else (f"raw {step.key}",)
    opened.conversations.add(
        Branch(
            step_key=step.key,
            role=step.role,
            keys=keys,
            tools=json.dumps(call.tools, sort_keys=True),
            messages=call.messages,
            reply=reply,
            stream=(*prompt.ids, *step.completion_ids),
            tail=step.completion_ids,
        )
    )
