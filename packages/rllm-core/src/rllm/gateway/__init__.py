"""The gateway: every LLM call of a rollout passes through it, exact and recorded."""

__all__ = ["ApiError", "Gateway", "PolicyUpstream", "ProviderUpstream", "SessionState", "Upstream"]

from rllm.gateway.errors import ApiError
from rllm.gateway.server import Gateway
from rllm.gateway.sessions import SessionState
from rllm.gateway.upstreams import PolicyUpstream, ProviderUpstream, Upstream
