"""What answers calls: the interface of an upstream, and what passes over it.

checked request ──prompt()──▶ exact ids ──answer()──▶ choices, with ids and logprobs where the upstream has them
"""

__all__ = ["Answer", "Asked", "Choice", "Continued", "Prompted", "TokenText", "Upstream"]

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rllm.gateway.params import Request
from rllm.types import SamplingParams


@dataclass(frozen=True)
class Continued:
    """A recorded step that a request continues."""

    stream: tuple[int, ...]
    """All its token ids, prompt and completion."""
    completion_ids: tuple[int, ...]
    n_shared: int
    """Chat: how many of the request's messages it holds, the reply last. Completions: how many characters of the text
    prompt, or token ids."""


@dataclass(frozen=True)
class Prompted:
    """The prompt of a call."""

    ids: tuple[int, ...]
    """Empty for an upstream that takes messages."""
    n_continued: int
    """How many of the ids are the stream of the step that is continued; 0 where the prompt was rendered anew."""


@dataclass(frozen=True)
class Asked:
    """One call as it is put to an upstream."""

    request: Request
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    is_chat: bool


@dataclass(frozen=True)
class TokenText:
    """A sampled token for people: what OpenAI's logprobs show."""

    text: str
    raw: bytes
    """Its bytes; all of them in a row are the text. A control token has a name and no bytes."""
    logprob: float
    top: tuple[tuple[str, bytes, float], ...]
    """The likeliest tokens at its place and their logprobs, best first."""


@dataclass(frozen=True)
class Choice:
    """One completion as an upstream gives it; whether its token arrays agree in length is checked by the gateway."""

    message: Mapping[str, Any]
    """An assistant message; of a raw completion, its content is the text."""
    finish_reason: str
    """OpenAI's, or ``aborted``."""
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Nats, of the distribution that was sampled from."""
    versions: tuple[int, ...] = ()
    exact_text: str | None = None
    """The text of all ids, control tokens and stop strings included; of raw completions."""
    tokens: tuple[TokenText, ...] | None = None
    """None where no logprobs were asked for, or there are none to give."""
    logprobs_body: Any = None
    """A provider's logprobs as it sent them."""
    untrainable: str | None = None
    malformed: str | None = None
    """Why something that looks like a tool call is none; it is in the content as it was written."""


@dataclass(frozen=True)
class Answer:
    """What an upstream gives back; the counts are as it reports them."""

    choices: tuple[Choice, ...]
    prompt_tokens: int
    completion_tokens: int
    untrainable: str | None = None
    """Why none of the choices may be trained on."""


class Upstream(Protocol):
    """Answers calls. ``PolicyUpstream`` and ``ProviderUpstream`` are the two kinds."""

    @property
    def model_name(self) -> str:
        """As ``/models`` lists it."""
        ...

    @property
    def takes_all_parameters(self) -> bool:
        """Whether it judges parameters and contents by itself (a provider); else what is unknown is refused."""
        ...

    def prompt(self, request: Request, continued: Continued | None, *, is_chat: bool) -> Prompted:
        """The exact ids to continue; called in a worker thread.

        Raises TemplateError where the messages can't be rendered, ContextLengthError where nothing is left for a
        completion, ApiError for a prompt that is none.
        """
        ...

    async def answer(self, asked: Asked) -> Answer:
        """Cancelling it frees what it holds. Raises ApiError to answer with that, ContextLengthError; whatever else
        it raises is the upstream's failure."""
        ...

    async def close(self) -> None:
        """Let go of connections; called when the gateway stops."""
        ...
