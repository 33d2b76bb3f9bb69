"""Everything that serves a policy to agents, put together: engine, renderer, trace store, gateway.

model name ──▶ backend (or a provider) ──▶ upstream ──▶ gateway ◀── agents
"""

__all__ = ["Serving", "make_backend", "make_rehearsal", "open_serving"]

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

from rllm.config import EvalConfig, LoraConfig, TrainConfig
from rllm.configure import AnyConfig, settings_of
from rllm.errors import ConfigError, ModelError
from rllm.gateway import Gateway, PolicyUpstream, ProviderUpstream
from rllm.models import ModelSource, resolve_model
from rllm.plugins import PluginManager
from rllm.protocols import BackendRequest, Rehearsal, TrainBackend
from rllm.rendering import Renderer
from rllm.trace import TraceStore

log = logging.getLogger("rllm")


@dataclass(frozen=True)
class Serving:
    """A policy that agents can reach."""

    model: ModelSource
    gateway: Gateway
    store: TraceStore
    backend: TrainBackend | None
    """None where a provider answers: there is nothing to train."""


@contextlib.asynccontextmanager
async def open_serving(
    config: TrainConfig | EvalConfig, plugins: PluginManager, traces: Path, say: Callable[[str], None] = log.info
) -> AsyncGenerator[Serving]:
    """Load the model, start the gateway, and end both in the right order whatever happens inside.

    ``say`` is told what takes a while: a model's first conversion.

    Raises ModelError for a model that can't be trained (a provider's), ConfigError for settings the backend refuses.
    """
    source = resolve_model(config.model, say)
    backend: TrainBackend | None = None
    store = TraceStore(traces)
    try:
        if source.kind == "provider" and isinstance(config, EvalConfig):
            policy = ProviderUpstream(source.base_url or "", source.api_key or "", source.model_id or source.name)
        else:
            backend = make_backend(config, plugins, source)
            info = backend.model
            renderer = Renderer(info.tokenizer, context_tokens=info.context_tokens)
            for what, problem in (("", renderer.bridge_problem), (" after tool calls", renderer.tool_bridge_problem)):
                if problem is not None:
                    log.warning(
                        "the chat template of %s can't be continued token by token%s (%s): such a turn is rendered "
                        "anew and becomes a row of its own",
                        source.name,
                        what,
                        problem,
                    )
            policy = PolicyUpstream(backend.sampler(), renderer, info)
        gateway = Gateway(store=store, policy=policy, plugins=plugins, run_seed=config.seed)
        gateway.start()
        try:
            yield Serving(source, gateway, store, backend)
        finally:
            gateway.stop()
    finally:
        if backend is not None:
            await backend.close()
        store.close()


def make_backend(config: AnyConfig, plugins: PluginManager, source: ModelSource) -> TrainBackend:
    """The backend that a configuration names, with the model in it.

    Raises ModelError for a model that can't be trained (a provider's), ConfigError for settings the backend refuses.
    """
    backend = plugins.get("backend", config.backend).value(_request(config, source))
    if not isinstance(backend, TrainBackend):
        raise ConfigError(f"the backend {config.backend!r} made a {type(backend).__name__}, no TrainBackend")
    return backend


def make_rehearsal(config: AnyConfig, plugins: PluginManager, source: ModelSource) -> Rehearsal | None:
    """The same without the weights; None where the backend has no rehearsal. Raises as ``make_backend``."""
    request = _request(config, source)
    rehearse = plugins.get("backend", config.backend).extra.get("rehearse")
    return None if rehearse is None else rehearse(request)


def _request(config: AnyConfig, source: ModelSource) -> BackendRequest:
    if source.kind == "provider":
        raise ModelError(
            f"the model {config.model!r} is a provider's: its weights can't be trained. "
            "Choose one of `rllm model list`, a folder, or a hub id; a provider's model can be evaluated"
        )
    lora = LoraConfig() if isinstance(config, EvalConfig) else config.lora
    return BackendRequest(
        model_name=source.name,
        model_path=source.path,
        seed=config.seed,
        lora_rank=lora.rank,
        lora_alpha=lora.alpha if lora.alpha is not None else 2.0 * lora.rank,
        settings=settings_of(config, config.backend),
        trains=not isinstance(config, EvalConfig),
    )
