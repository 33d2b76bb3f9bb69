"""One call from its body to its recorded steps: checked, planned, put to the upstream, written down, answered.

The steps are in the store before the agent has its answer, and a call that fails or is cancelled leaves one too.
"""

__all__ = ["Desk", "perform", "to_the_end"]

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rllm.errors import BackendError, ContextLengthError, TemplateError, TraceStoreError
from rllm.gateway.dialects import Dialect
from rllm.gateway.errors import ApiError, bad_request, session_closed
from rllm.gateway.keys import CallKey, prompt_digest
from rllm.gateway.params import resolve_sampling
from rllm.gateway.planning import Reading, Routes, found_in, read_request, remember
from rllm.gateway.replies import Done
from rllm.gateway.sessions import OpenSession
from rllm.gateway.steps import CallRecord
from rllm.gateway.turnstile import Turnstile
from rllm.gateway.upstreams import Answer, Asked, Choice
from rllm.trace import Span
from rllm.types import SamplingParams, Step

T = TypeVar("T")


@dataclass(frozen=True)
class Desk:
    """What all calls share."""

    routes: Routes
    turnstile: Turnstile
    run_seed: int
    work: Callable[..., Awaitable[Any]]
    """``await work(function, *arguments)`` runs it in the worker thread: what takes long for long texts."""
    record: Callable[[OpenSession, Step], Awaitable[None]]
    """Writes a step durably and tells the plugins."""
    cut: Callable[[OpenSession, Sequence[Step]], Awaitable[None]]
    """Writes down of recorded steps that their answer did not reach the agent whole."""


async def perform(desk: Desk, opened: OpenSession, dialect: Dialect, body: bytes, role: str, span: Span | None) -> Done:
    """Answer a call. Raises ApiError; when it is cancelled, the step says so."""
    try:
        return await _perform(desk, opened, dialect, body, role, span)
    except TraceStoreError as error:
        opened.state.upstream_error = str(error)
        message = f"the call can't be recorded, so it is not answered: {error}"
        raise ApiError(500, message, kind="server_error") from error


async def _perform(
    desk: Desk, opened: OpenSession, dialect: Dialect, body: bytes, role: str, span: Span | None
) -> Done:
    reading: Reading = await desk.work(read_request, body, dialect, desk.routes)
    # Whoever holds the policy finds every call of before answered and recorded.
    async with desk.turnstile.passage() if reading.route == "policy" else contextlib.nullcontext():
        if opened.state.is_closed:
            raise session_closed(opened.session.id)
        _check_budget(opened)
        record = _begin(opened, dialect, reading, role, span)
        return await _answer(desk, opened, dialect, reading, record)


async def _answer(desk: Desk, opened: OpenSession, dialect: Dialect, reading: Reading, record: CallRecord) -> Done:
    try:
        key = await _plan(desk, opened, dialect, reading, record)
        answer = await reading.upstream.answer(
            Asked(reading.request, record.prompted.ids, record.sampling, dialect.is_chat)
        )
    except asyncio.CancelledError:
        await to_the_end(desk.record(opened, record.failed("cancelled", "its client went, or its session was closed")))
        raise
    except Exception as error:
        refusal = _refusal_of(error, opened)
        opened.charged_calls -= 1
        await to_the_end(desk.record(opened, record.failed("error", refusal.message)))
        raise refusal from error
    written = asyncio.ensure_future(_write_down(desk, opened, reading, record, key, answer))
    try:
        return await to_the_end(written)
    except asyncio.CancelledError:
        if written.done() and not written.cancelled() and written.exception() is None:
            await to_the_end(desk.cut(opened, written.result().steps))
        raise


async def to_the_end(work: Awaitable[T]) -> T:
    """Finish ``work`` also where the caller is cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def _check_budget(opened: OpenSession) -> None:
    state = opened.state
    if opened.max_calls is not None and opened.charged_calls >= opened.max_calls:
        state.limit_hit = "call_limit"
        message = f"this rollout may make {opened.max_calls} model calls (rollout.max_calls), and has made them"
    elif opened.max_tokens_total is not None and state.sampled_tokens >= opened.max_tokens_total:
        state.limit_hit = "token_limit"
        message = f"this rollout may sample {opened.max_tokens_total} tokens (rollout.max_tokens_total), and has"
    else:
        return
    raise ApiError(403, message, kind="budget_exhausted", code=state.limit_hit)


def _begin(opened: OpenSession, dialect: Dialect, reading: Reading, role: str, span: Span | None) -> CallRecord:
    if span is not None and span.is_adapter:
        opened.has_adapter_spans = True
    is_training = opened.session.is_training and reading.route == "policy"
    sampling, overridden = resolve_sampling(reading.request.wanted, opened.sampling, is_training=is_training)
    record = CallRecord(
        call_id=dialect.id_prefix + secrets.token_hex(16),
        session_id=opened.session.id,
        index=opened.state.calls,
        role=role,
        span_id=None if span is None else span.id,
        route=reading.route,
        dialect=dialect.name,
        request=reading.request,
        is_side_call=span is None and opened.has_adapter_spans,
        sampling=_within_budget(sampling, opened, reading.request.n),
        overridden=overridden,
        is_drawn_as_the_run_says=is_training,
    )
    opened.state.calls += 1
    opened.charged_calls += 1
    return record


def _within_budget(sampling: SamplingParams, opened: OpenSession, n: int) -> SamplingParams:
    """No longer than what is left of the rollout's tokens; calls at the same time may each take all of it."""
    if opened.max_tokens_total is None:
        return sampling
    left = max(1, (opened.max_tokens_total - opened.state.sampled_tokens) // n)
    return sampling if sampling.max_tokens <= left else sampling.model_copy(update={"max_tokens": left})


async def _plan(desk: Desk, opened: OpenSession, dialect: Dialect, reading: Reading, record: CallRecord) -> CallKey:
    """Find what is continued, make the prompt, and with it the call's key and seed."""
    found = found_in(opened, reading, record.role, record.span_id)
    continued = found.continued()
    upstream = reading.upstream
    record.break_reason = found.break_reason
    record.prompted = await desk.work(lambda: upstream.prompt(reading.request, continued, is_chat=dialect.is_chat))
    if continued is not None and record.prompted.n_continued == len(continued.stream):
        record.parent, record.n_shared = found.node, found.n_shared
    elif continued is not None:
        record.break_reason = "template"
    digest = prompt_digest(record.prompted.ids or reading.content)
    counted = f"{record.role}\n{digest}"
    session = opened.session
    key = CallKey(
        desk.run_seed, opened.phase, session.task_id, session.sample, record.role, digest, opened.occurrences[counted]
    )
    opened.occurrences[counted] += 1
    asked = None if record.is_drawn_as_the_run_says else reading.request.wanted.draw.get("seed")
    record.sampling = record.sampling.model_copy(update={"seed": key.seed() if asked is None else asked % 2**63})
    return key


def _refusal_of(error: Exception, opened: OpenSession) -> ApiError:
    """What the agent is told, and what the session's state says of it."""
    state = opened.state
    state.context_length_hit = isinstance(error, ContextLengthError)
    state.upstream_error = None
    if isinstance(error, ContextLengthError):
        return bad_request(str(error), "messages", "context_length_exceeded")
    if isinstance(error, TemplateError):
        return bad_request(str(error), "messages")
    if isinstance(error, ApiError):
        if error.status >= 500:
            state.upstream_error = error.message
        return error
    state.upstream_error = f"{type(error).__name__}: {error}"
    status = 503 if isinstance(error, BackendError) else 500
    return ApiError(status, f"the upstream failed: {state.upstream_error}", kind="server_error")


async def _write_down(
    desk: Desk, opened: OpenSession, reading: Reading, record: CallRecord, key: CallKey, answer: Answer
) -> Done:
    answer = replace(answer, choices=tuple(_with_call_ids(c, k, key) for k, c in enumerate(answer.choices)))
    steps = record.answered(answer)
    for step in steps:
        await desk.record(opened, step)
    for step, choice in zip(steps, answer.choices, strict=True):
        remember(opened, reading, record.parent, record.n_shared, step, choice)
    state = opened.state
    state.context_length_hit, state.upstream_error = False, None
    state.malformed_tool_calls += sum(choice.malformed is not None for choice in answer.choices)
    if record.route == "policy":
        state.completed_calls += 1
        state.sampled_tokens += answer.completion_tokens
    return Done(reading.request, record.prompted.ids, answer, steps)


def _with_call_ids(choice: Choice, k: int, key: CallKey) -> Choice:
    """Tool calls with ids; a provider's have theirs."""
    calls = choice.message.get("tool_calls")
    if not calls:
        return choice
    named = [call if call.get("id") else {"id": key.tool_call_id(k, j), **call} for j, call in enumerate(calls)]
    return replace(choice, message={**choice.message, "tool_calls": named})
