"""The built-in backends, registered through the same hook as a stranger's."""

__all__ = ["rllm_register_backends"]

import os

from rllm.backends.local.settings import TinkerSettings
from rllm.hookspecs import hookimpl
from rllm.plugins import Register
from rllm.protocols import BackendRequest, Rehearsal, TrainBackend


@hookimpl
def rllm_register_backends(register: Register) -> None:
    register(
        "tinker",
        embedded_engine,
        summary="the embedded engine: this machine's CPU or one GPU, any causal LM of transformers",
        settings=TinkerSettings,
        rehearse=rehearse_engine,
    )


def embedded_engine(request: BackendRequest) -> TrainBackend:
    """Load a model into the embedded engine. Raises ModelError, ConfigError."""
    _let_threads_sleep()
    from rllm.backends.local.backend import LocalBackend

    return LocalBackend(request)


def rehearse_engine(request: BackendRequest) -> Rehearsal:
    """The embedded engine without a model's weights. Raises ModelError, ConfigError."""
    _let_threads_sleep()
    from rllm.backends.local.rehearsal import LocalRehearsal

    return LocalRehearsal(request)


def _let_threads_sleep() -> None:
    """OpenMP's threads spin while they wait; beside a busy neighbour that costs a factor of ten. It is read when torch
    is first imported, so it is set before the engine's modules are."""
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
