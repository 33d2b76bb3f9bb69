"""The policy as an upstream: messages to exact token ids, a sampler in between, and sampled ids back to messages."""

__all__ = ["PolicyUpstream"]

import asyncio
from collections.abc import Sequence
from typing import Any

from rllm.errors import ContextLengthError
from rllm.gateway.errors import bad_request
from rllm.gateway.messages import plain_message
from rllm.gateway.params import Request
from rllm.gateway.upstreams import Answer, Asked, Choice, Continued, Prompted, TokenText
from rllm.protocols import ModelInfo, Sampler
from rllm.rendering import Renderer, alternative_strings, token_strings
from rllm.types import Completion, Prompt, ids


class PolicyUpstream:
    """A sampler, and the renderer of its model's template."""

    def __init__(self, sampler: Sampler, renderer: Renderer, model: ModelInfo) -> None:
        self.sampler, self.renderer, self.model = sampler, renderer, model

    @property
    def model_name(self) -> str:
        return self.model.name

    @property
    def takes_all_parameters(self) -> bool:
        return False

    async def close(self) -> None:
        """The sampler is its owner's to close."""

    # -- request to ids

    def prompt(self, request: Request, continued: Continued | None, *, is_chat: bool) -> Prompted:
        """See ``Upstream``. A template that can't be bridged is rendered anew."""
        prompted = self._chat_prompt(request, continued) if is_chat else self._raw_prompt(request, continued)
        if len(prompted.ids) >= self.model.context_tokens:
            raise ContextLengthError(len(prompted.ids), self.model.context_tokens)
        return prompted

    def _chat_prompt(self, request: Request, continued: Continued | None) -> Prompted:
        messages = [plain_message(m) for m in request.messages]
        tools = list(request.tools) or None
        if continued is not None:
            head, reply, new = _split(messages, continued.n_shared)
            bridge = self.renderer.bridge(head, reply, new, tools, continued.completion_ids)
            if bridge is not None:
                return Prompted((*continued.stream, *bridge), len(continued.stream))
        return Prompted(tuple(self.renderer.render(messages, tools)), 0)

    def _raw_prompt(self, request: Request, continued: Continued | None) -> Prompted:
        prompt, largest = request.prompt, self.model.vocab_size - 1
        if isinstance(prompt, tuple) and max(prompt) > largest:
            raise bad_request(f"prompt holds the token id {max(prompt)}; the model's are 0 to {largest}", "prompt")
        if continued is not None:
            rest = prompt[continued.n_shared :]
            added = self.renderer.encode(rest) if isinstance(rest, str) else rest
            return Prompted((*continued.stream, *added), len(continued.stream))
        return Prompted(tuple(self._encode_whole(prompt)) if isinstance(prompt, str) else prompt, 0)

    def _encode_whole(self, text: str) -> list[int]:
        """With the tokens that the tokenizer puts before every text, once."""
        tokenizer = self.model.tokenizer
        encoded: list[int] = tokenizer(text)["input_ids"]
        start = tokenizer.bos_token_id
        if start is not None and encoded[:2] == [start, start]:
            return encoded[1:]
        return encoded

    # -- ids to replies

    async def answer(self, asked: Asked) -> Answer:
        """See ``Upstream``."""
        drawn = await self.sampler.sample(Prompt(ids(asked.prompt_ids)), asked.sampling, asked.request.n)
        choices = await asyncio.to_thread(lambda: tuple(self._choice(c, asked) for c in drawn))
        return Answer(choices, len(asked.prompt_ids), sum(len(c.ids) for c in drawn))

    def _choice(self, completion: Completion, asked: Asked) -> Choice:
        sampled: list[int] = completion.ids.tolist()
        finish: str = completion.finish_reason
        exact: str | None = None
        malformed: str | None = None
        if asked.is_chat:
            message, malformed = self._message(sampled, asked)
            if "tool_calls" in message and finish == "stop":
                finish = "tool_calls"
        else:
            exact = _whole_text(self.model.tokenizer, sampled)
            message = {"role": "assistant", "content": _before_stop(self.renderer.decode(sampled), asked.sampling.stop)}
        untrainable = "modified distribution" if completion.distribution != "full" else None
        return Choice(
            message=message,
            finish_reason=finish,
            ids=tuple(sampled),
            logprobs=tuple(completion.logprobs.tolist()),
            versions=tuple(completion.versions.tolist()),
            exact_text=exact,
            tokens=self._tokens(completion) if asked.request.wants_logprobs else None,
            untrainable="aborted" if finish == "aborted" else untrainable,
            malformed=malformed,
        )

    def _message(self, sampled: Sequence[int], asked: Asked) -> tuple[dict[str, Any], str | None]:
        request = asked.request
        reply = self.renderer.parse(sampled, list(request.tools) if request.may_call_tools else None)
        stop = asked.sampling.stop
        reasoning = None if reply.reasoning is None else _before_stop(reply.reasoning, stop)
        content = None if reply.content is None else _before_stop(reply.content, stop)
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        if reply.tool_calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in reply.tool_calls
            ]
        return message, reply.malformed

    def _tokens(self, completion: Completion) -> tuple[TokenText, ...]:
        tops = completion.top_logprobs or ((),) * len(completion.ids)
        named = token_strings(self.model.tokenizer, completion.ids.tolist())
        tokens: list[TokenText] = []
        for k, ((text, raw), logprob, top) in enumerate(zip(named, completion.logprobs.tolist(), tops, strict=True)):
            others = alternative_strings(self.model.tokenizer, [i for i, _ in top], at_start=k == 0)
            alternatives = tuple((*other, value) for other, (_, value) in zip(others, top, strict=True))
            tokens.append(TokenText(text, raw, logprob, alternatives))
        return tuple(tokens)


def _split(
    messages: Sequence[dict[str, Any]], n_shared: int
) -> tuple[Sequence[dict[str, Any]], dict[str, Any], Sequence[dict[str, Any]]]:
    """What came before the recorded reply, the reply as it was sent back, and what is new."""
    return messages[: n_shared - 1], messages[n_shared - 1], messages[n_shared:]


def _before_stop(text: str, stop: Sequence[str]) -> str:
    """The text up to the first stop string in it."""
    return text[: min((at for at in (text.find(s) for s in stop) if at >= 0), default=len(text))]


def _whole_text(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The text of all ids, control tokens by name."""
    return tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
