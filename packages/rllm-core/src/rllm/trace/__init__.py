"""Sessions and their context, the instrumented clients, the store of recorded calls, and what is assembled of them."""

__all__ = [
    "SIDE_CALL",
    "Session",
    "Span",
    "StoreMark",
    "TraceStore",
    "apply_returned",
    "as_role",
    "assemble",
    "carry_context",
    "current_session",
    "current_span",
    "instrument_openai",
    "no_session",
    "prompt_ids",
    "rollouts_running",
    "span_from_headers",
    "steps_by_key",
    "stream_ids",
    "uninstrument_openai",
    "use_session",
]

from rllm.trace.assembly import SIDE_CALL, apply_returned, assemble
from rllm.trace.context import carry_context
from rllm.trace.instrument import instrument_openai, uninstrument_openai
from rllm.trace.routing import span_from_headers
from rllm.trace.running import rollouts_running
from rllm.trace.session import Session, Span, as_role, current_session, current_span, no_session, use_session
from rllm.trace.store import StoreMark, TraceStore
from rllm.trace.tree import prompt_ids, steps_by_key, stream_ids
