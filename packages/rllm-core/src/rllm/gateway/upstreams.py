"""Who answers a call: the policy (token ids in and out), or a frozen provider (recorded, never trained)."""

__all__ = ["Answer", "Asked", "Choice", "PolicyUpstream", "ProviderUpstream", "Upstream"]

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rllm.gateway.errors import ApiError
from rllm.protocols import ModelInfo, Sampler
from rllm.rendering import Renderer
from rllm.trace import no_session
from rllm.types import Completion, Prompt, SamplingParams


@dataclass(frozen=True)
class Asked:
    """One call as an upstream gets it."""

    model: str
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    prompt_ids: tuple[int, ...]
    """Empty for an upstream that takes messages."""
    sampling: SamplingParams
    n: int


@dataclass(frozen=True)
class Choice:
    """One completion of an upstream."""

    completion: Completion | None
    """None where the upstream gives no ids."""
    message: Mapping[str, Any]
    finish_reason: str
    malformed: str | None = None


@dataclass(frozen=True)
class Answer:
    """What an upstream gives back."""

    choices: tuple[Choice, ...]
    prompt_tokens: int
    completion_tokens: int
    untrainable: str | None = None


class Upstream(Protocol):
    """Answers calls."""

    route: str

    async def answer(self, asked: Asked) -> Answer:
        """Raises ContextLengthError, ApiError, or whatever the engine raises."""
        ...

    async def close(self) -> None:
        """Let go of connections; called in the gateway's loop when it stops."""
        ...


class PolicyUpstream:
    """The policy that is trained: a sampler, and the renderer of its template."""

    def __init__(self, sampler: Sampler, renderer: Renderer, info: ModelInfo) -> None:
        self.sampler, self.renderer, self.info = sampler, renderer, info
        self.route = "policy"

    async def answer(self, asked: Asked) -> Answer:
        """Draw ``n`` completions of the prompt ids."""
        prompt = Prompt(np.asarray(asked.prompt_ids, dtype=np.int32))
        drawn = await self.sampler.sample(prompt, asked.sampling, asked.n)
        choices = await asyncio.to_thread(lambda: tuple(self._choice(c, asked) for c in drawn))
        return Answer(
            choices=choices,
            prompt_tokens=len(asked.prompt_ids),
            completion_tokens=sum(len(c.ids) for c in drawn),
        )

    async def close(self) -> None:
        """The engine is closed by whoever made it."""

    def _choice(self, completion: Completion, asked: Asked) -> Choice:
        ids = completion.ids.tolist()
        reply = self.renderer.parse(ids, asked.tools or None)
        content = _before_stop(reply.content, asked.sampling.stop)
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if reply.reasoning is not None:
            message["reasoning_content"] = reply.reasoning
        if reply.tool_calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in reply.tool_calls
            ]
        finish = "tool_calls" if reply.tool_calls and completion.finish_reason == "stop" else completion.finish_reason
        return Choice(completion, message, finish, reply.malformed)


def _before_stop(text: str | None, stop: tuple[str, ...]) -> str | None:
    if text is None:
        return None
    ends = [at for at in (text.find(s) for s in stop) if at >= 0]
    return text[: min(ends)] if ends else text


class ProviderUpstream:
    """Any OpenAI-compatible server, by its own client. Its answers carry no ids and are never trained on."""

    def __init__(self, base_url: str, api_key: str, model: str) -> None:
        self.base_url, self.api_key, self.model = base_url, api_key, model
        self.route = model
        self._client: Any = None

    async def answer(self, asked: Asked) -> Answer:
        """Ask the provider; its errors are passed on in their own form."""
        import openai

        if self._client is None:
            # max_retries: the agent's client retries already, and a retry of ours would hide from its record.
            self._client = openai.AsyncOpenAI(base_url=self.base_url, api_key=self.api_key or "none", max_retries=0)
        if not asked.messages:
            raise ApiError(400, "a raw completion can't be sent to a provider; use chat completions")
        s = asked.sampling
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": list(asked.messages),
            "max_tokens": s.max_tokens,
            "temperature": s.temperature,
            "top_p": s.top_p,
            "n": asked.n,
        }
        if asked.tools:
            fields["tools"] = list(asked.tools)
        if s.stop:
            fields["stop"] = list(s.stop)
        for name in ("presence_penalty", "frequency_penalty"):
            if getattr(s, name):
                fields[name] = getattr(s, name)
        try:
            with no_session():
                reply = await self._client.chat.completions.create(**fields)
        except openai.APIStatusError as error:
            raise ApiError(
                error.status_code, f"the provider of {self.model!r} answered: {error.message}", kind="provider_error"
            ) from error
        except openai.APIConnectionError as error:
            raise ApiError(
                503,
                f"the provider of {self.model!r} at {self.base_url} can't be reached: {error}",
                kind="provider_error",
            ) from error
        choices = tuple(
            Choice(None, c.message.model_dump(exclude_none=True), c.finish_reason or "stop") for c in reply.choices
        )
        usage = reply.usage
        return Answer(
            choices=choices,
            prompt_tokens=usage.prompt_tokens if usage else 0,
            completion_tokens=usage.completion_tokens if usage else 0,
            untrainable="frozen upstream",
        )

    async def close(self) -> None:
        """Close the client's connections."""
        if self._client is not None:
            await self._client.close()
