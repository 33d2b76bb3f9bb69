"""The gateway: every LLM call of a rollout passes through it, exact and recorded."""

__all__ = [
    "Answer",
    "ApiError",
    "Asked",
    "Choice",
    "Continued",
    "Gateway",
    "PolicyUpstream",
    "Prompted",
    "ProviderUpstream",
    "Request",
    "SessionState",
    "Upstream",
]

from rllm.gateway.errors import ApiError
from rllm.gateway.params import Request
from rllm.gateway.policy import PolicyUpstream
from rllm.gateway.provider import ProviderUpstream
from rllm.gateway.server import Gateway
from rllm.gateway.sessions import SessionState
from rllm.gateway.upstreams import Answer, Asked, Choice, Continued, Prompted, Upstream
