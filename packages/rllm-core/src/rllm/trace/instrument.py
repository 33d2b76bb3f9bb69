"""``instrument_openai()``: sends the calls of any ``openai`` client inside a session to that session.

Each call of every client passes through ``OpenAI.request`` or ``AsyncOpenAI.request`` (openai 2 and 3); those are
wrapped once. An absolute URL in the request's options wins over the client's base URL, so a client's age, address and
key don't matter, and its own retries, streams, parsing and raw responses go on as they are.
"""

__all__ = ["instrument_openai", "uninstrument_openai"]

import functools
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rllm.errors import SessionError
from rllm.trace.patching import Patch, PatchSet
from rllm.trace.routing import SERVED, call_headers, served_path
from rllm.trace.running import are_rollouts_running
from rllm.trace.session import (
    Session,
    current_session,
    current_span,
    is_below,
    is_marked_outside,
    is_session_url,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

    Client = OpenAI | AsyncOpenAI

NO_KEY = "rllm-this-client-has-no-api-key"
"""The key of a client that was made inside a rollout without one: openai refuses to make a client without any."""

_KEYS = (("api_key", "workload_identity", "provider", "admin_api_key"), ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"))
_AZURE_KEYS = (
    ("api_key", "azure_ad_token", "azure_ad_token_provider"),
    ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN"),
)
"""Arguments and environment variables, any of which makes openai content."""

_WEBSOCKETS = (
    ((2, 0), "openai.resources.realtime", ("Realtime", "AsyncRealtime")),
    ((2, 22), "openai.resources.responses", ("Responses", "AsyncResponses")),
)
"""Whose ``connect`` goes past ``request``, by the openai version that brought it."""


def _patches() -> Sequence[Patch]:
    import openai

    version = tuple(int(part) for part in openai.__version__.split(".")[:2])
    websockets = [
        Patch(getattr(importlib.import_module(module), name), "connect", _wrap_connect)
        for since, module, names in _WEBSOCKETS
        if version >= since
        for name in names
    ]
    key, azure_key = functools.partial(_wrap_init, *_KEYS), functools.partial(_wrap_init, *_AZURE_KEYS)
    return (
        Patch(openai.OpenAI, "request", _wrap_request),
        Patch(openai.AsyncOpenAI, "request", _wrap_async_request),
        Patch(openai.OpenAI, "__init__", key),
        Patch(openai.AsyncOpenAI, "__init__", key),
        Patch(openai.AzureOpenAI, "__init__", azure_key),
        Patch(openai.AsyncAzureOpenAI, "__init__", azure_key),
        *websockets,
    )


_PATCHES = PatchSet(_patches)


def instrument_openai() -> None:
    """From now on, calls of ``openai`` clients inside a session reach it; calling this again changes nothing.

    While rollouts run, a call with neither a session nor ``rllm.no_session()`` raises SessionError before anything is
    sent, and so does a call inside a session to what the gateway doesn't serve. Outside rollouts nothing changes.
    Imports ``openai``.
    """
    _PATCHES.install()


def uninstrument_openai() -> None:
    """Give the ``openai`` classes their own methods back; calling this again changes nothing."""
    _PATCHES.uninstall()


def _wrap_request(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def request(self: "OpenAI", cast_to: Any, options: Any, *arguments: Any, **keywords: Any) -> Any:
        return original(self, cast_to, _routed(self, options), *arguments, **keywords)

    return request


def _wrap_async_request(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def request(self: "AsyncOpenAI", cast_to: Any, options: Any, *arguments: Any, **keywords: Any) -> Any:
        return await original(self, cast_to, _routed(self, options), *arguments, **keywords)

    return request


def _wrap_init(
    credentials: Sequence[str], variables: Sequence[str], original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(self: "Client", *arguments: Any, **keywords: Any) -> None:
        has_key = any(keywords.get(name) for name in credentials) or any(os.environ.get(name) for name in variables)
        if _PATCHES.is_on and not has_key and _is_in_rollout():
            keywords["api_key"] = NO_KEY
        original(self, *arguments, **keywords)

    return init


def _wrap_connect(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def connect(self: object, *arguments: Any, **keywords: Any) -> Any:
        session = current_session()
        if _PATCHES.is_on and _is_in_rollout() and (session is None or session.redirect):
            raise SessionError(_unserved_message("websocket", f"{type(self).__name__}.connect"))
        return original(self, *arguments, **keywords)

    return connect


def _is_in_rollout() -> bool:
    return current_session() is not None or (are_rollouts_running() and not is_marked_outside())


def _routed(client: "Client", options: Any) -> Any:
    """The request's options (openai's ``FinalRequestOptions``) as they are to be sent; SessionError where they may
    not be sent at all."""
    if not _PATCHES.is_on:
        return options
    url = options.url if "://" in options.url else f"{str(client.base_url).rstrip('/')}/{options.url.lstrip('/')}"
    session = current_session()
    if session is None:
        if are_rollouts_running() and not is_marked_outside() and not is_session_url(url):
            raise SessionError(_outside_message(options.method, url))
        _refuse_missing_key(client, url)
        return options
    if is_below(url, session.base_url):
        target = url
    elif session.redirect:
        path = served_path(options.method, options.url)
        if path is None:
            raise SessionError(_unserved_message(options.method, url))
        target = session.base_url.rstrip("/") + path
    else:
        _refuse_missing_key(client, url)
        return options
    return options.model_copy(update={"url": target, "headers": _headers(client, options.headers, session)})


def _headers(client: "Client", given: Any, session: Session) -> dict[str, Any]:
    """The request's own headers with the session's put in the place of the client's credentials."""
    import openai

    ours = {"Authorization": f"Bearer {session.api_key}", **call_headers(session, current_span())}
    replaced = {name.lower() for name in ours} | {"api-key"}
    own: Mapping[str, Any] = {} if isinstance(given, openai.NotGiven) else given
    headers: dict[str, Any] = {name: value for name, value in own.items() if name.lower() not in replaced}
    # openai 2 merges headers by exact spelling, so that a client's "authorization" would be sent beside ours; "api-key"
    # is Azure's, and is nobody's business here.
    spellings = [name for name in client.default_headers if name.lower() in replaced]
    headers |= dict.fromkeys([*spellings, "api-key"], openai.Omit())
    return headers | ours


def _refuse_missing_key(client: "Client", url: str) -> None:
    if client.api_key == NO_KEY:
        raise SessionError(
            f"this openai client was made inside a rollout without an API key, so it can't call {url}. "
            "Give it a key, or set OPENAI_API_KEY before it is made."
        )


def _outside_message(method: str, url: str) -> str:
    return (
        f"{method.upper()} {url} belongs to no session while rollouts run, so it was not sent. If it is the agent's, "
        "its context was lost on the way (a thread, process or loop that the agent did not start inside the rollout): "
        "make the call where the agent runs, or use config.base_url and config.api_key. If it is meant to leave, "
        "make it inside `with rllm.no_session():`."
    )


def _unserved_message(method: str, url: str) -> str:
    served = ", ".join(f"{m} /{path}" for m, path in SERVED)
    return (
        f"the gateway doesn't serve {method.upper()} {url}, so it was not sent (served: {served}). To make the call to "
        "a provider on purpose, unrecorded, make it inside `with rllm.no_session():`."
    )
