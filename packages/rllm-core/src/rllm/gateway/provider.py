"""Any OpenAI-compatible server as an upstream, by its own client: recorded, and never trained on."""

__all__ = ["ProviderUpstream"]

from typing import TYPE_CHECKING, Any

from rllm.gateway.errors import ApiError, bad_request
from rllm.gateway.params import Request
from rllm.gateway.upstreams import Answer, Asked, Choice, Continued, Prompted
from rllm.trace import no_session
from rllm.types import SamplingParams

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_OURS = ("model", "stream", "stream_options", "top_k", "min_p", "return_token_ids")
"""Fields of the request that are not sent on as they are."""
_PASSED_ON = (400, 404, 413, 422)
"""Statuses of a provider that say that the request is at fault."""


class ProviderUpstream:
    """Sends a request's own parameters on, to ``model`` at ``base_url``; the run's sampling fills in what it leaves
    out. The usage it reports is the provider's."""

    def __init__(self, base_url: str, api_key: str, model: str) -> None:
        self.base_url, self.model = base_url, model
        self._api_key = api_key
        self._client: AsyncOpenAI | None = None

    @property
    def model_name(self) -> str:
        return self.model

    @property
    def takes_all_parameters(self) -> bool:
        return True

    def prompt(self, request: Request, continued: Continued | None, *, is_chat: bool) -> Prompted:
        """A provider takes messages."""
        return Prompted((), 0)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def answer(self, asked: Asked) -> Answer:
        """See ``Upstream``. Temporary failures are tried again by the client; what is left of them is a 503."""
        import openai
        from openai.types import Completion
        from openai.types.chat import ChatCompletion

        fields = self._fields(asked)
        try:
            with no_session():
                client = self._connected()
                if asked.is_chat:
                    reply = await client.post("/chat/completions", cast_to=ChatCompletion, body=fields)
                else:
                    reply = await client.post("/completions", cast_to=Completion, body=fields)
        except openai.APIStatusError as error:
            raise self._refusal(error.status_code, error.message, error.param, error.code) from error
        except openai.APIError as error:
            raise ApiError(
                503, f"the provider of {self.model!r} at {self.base_url} gave no answer: {error}", kind="provider_error"
            ) from error
        body = reply.model_dump(mode="json", exclude_unset=True)
        choices = body.get("choices")
        if not choices:
            raise ApiError(
                503,
                f"the provider of {self.model!r} answered without choices: {str(body)[:200]}",
                kind="provider_error",
            )
        usage = body.get("usage") or {}
        return Answer(
            tuple(_choice(choice, asked.is_chat) for choice in choices),
            usage.get("prompt_tokens") or 0,
            usage.get("completion_tokens") or 0,
            untrainable="frozen upstream",
        )

    def _connected(self) -> "AsyncOpenAI":
        if self._client is None:
            import openai

            self._client = openai.AsyncOpenAI(base_url=self.base_url, api_key=self._api_key or "none")
        return self._client

    def _fields(self, asked: Asked) -> dict[str, Any]:
        if not asked.is_chat and not isinstance(asked.request.prompt, str):
            raise bad_request("a provider takes text, no token ids of another model", "prompt")
        fields = {name: value for name, value in asked.request.body.items() if name not in _OURS and value is not None}
        return _defaults(asked.sampling, fields, self.base_url, asked.is_chat) | fields | {"model": self.model}

    def _refusal(self, status: int, message: str, param: str | None, code: str | None) -> ApiError:
        text = f"the provider of {self.model!r} answered {status}: {message}"
        if status in _PASSED_ON:
            return ApiError(status, text, param=param, code=code)
        return ApiError(503, text, kind="provider_error", code=code)


def _defaults(sampling: SamplingParams, fields: dict[str, Any], base_url: str, is_chat: bool) -> dict[str, Any]:
    """What the run asks for, where it is not what a provider does anyway: some models refuse even to be told."""
    neutral = SamplingParams()
    names = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
    values: dict[str, Any] = {n: getattr(sampling, n) for n in names if getattr(sampling, n) != getattr(neutral, n)}
    if not {"max_tokens", "max_completion_tokens"} & fields.keys():
        # OpenAI's own newer models refuse the older name, which is the one that all other servers know.
        is_openai = is_chat and base_url.startswith("https://api.openai.com/")
        values["max_completion_tokens" if is_openai else "max_tokens"] = sampling.max_tokens
    values |= {n: getattr(sampling, n) for n in ("top_k", "min_p") if getattr(sampling, n)}
    if sampling.stop and "stop" not in fields:
        values["stop"] = list(sampling.stop)
    return values


def _choice(choice: dict[str, Any], is_chat: bool) -> Choice:
    if is_chat:
        message = {name: value for name, value in choice["message"].items() if value is not None or name == "content"}
    else:
        message = {"role": "assistant", "content": choice["text"]}
    return Choice(message, choice.get("finish_reason") or "stop", logprobs_body=choice.get("logprobs"))
