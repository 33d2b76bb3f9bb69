"""The built-in agents, by name; what a task source suggests where the user names none."""

from __future__ import annotations

__all__ = ["chat"]

import asyncio
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from rllm.config import AgentConfig
from rllm.hookspecs import hookimpl
from rllm.types import Task

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from rllm.plugins import Register

_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()


def _client(config: AgentConfig) -> AsyncOpenAI:
    """The session's client. One serves all of an event loop: each costs some 20 ms of TLS set-up.

    It keeps no connection open: on loopback a new one costs little, and nothing is left to close when the loop ends.
    """
    import openai

    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = openai.AsyncOpenAI(
            api_key="rllm",
            base_url=config.base_url,
            max_retries=0,
            timeout=None,
            default_headers={"connection": "close"},
        )
    return _clients[loop].with_options(api_key=config.api_key, base_url=config.base_url)


async def chat(task: Task, config: AgentConfig) -> str:
    """Asks the question in one user message and returns the reply's text."""
    reply = await _client(config).chat.completions.create(
        model=config.model,
        messages=[{"role": "user", "content": task.prompt}],
        max_completion_tokens=config.max_tokens,
    )
    return reply.choices[0].message.content or ""


@hookimpl
def rllm_register_agents(register: Register) -> None:
    register("chat", chat, summary="one question, one reply")
