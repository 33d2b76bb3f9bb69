"""What a model's name stands for."""

__all__ = ["ModelKind", "ModelSource", "describe_model"]

from dataclasses import dataclass, field
from typing import Literal

ModelKind = Literal["builtin", "folder", "hub", "provider"]


@dataclass(frozen=True)
class ModelSource:
    """Where a model's weights lie, or who answers for it."""

    name: str
    """As the user wrote it."""
    kind: ModelKind
    """``builtin``: made or shipped by rLLM; ``folder``: a Hugging Face folder; ``hub``: an id that transformers looks
    up on the hub; ``provider``: an OpenAI-compatible endpoint, which can be evaluated and not trained."""
    path: str = ""
    """What ``from_pretrained`` takes: a folder or a hub id. Empty for a provider, and for a built-in model that is
    not ready yet."""
    base_url: str | None = None
    """Of a provider."""
    model_id: str | None = None
    """What the provider calls the model."""
    api_key: str | None = field(default=None, repr=False)
    """Of a provider; None where none was given. It is in no message and no printout."""
    summary: str = ""
    """One line on a built-in model."""


def describe_model(source: ModelSource) -> str:
    """One line for people; a key is never part of it.

    >>> describe_model(ModelSource("big", "provider", base_url="https://api.example.com/v1", model_id="big-1"))
    'big-1 at https://api.example.com/v1; can be evaluated, not trained'
    """
    if source.kind == "builtin":
        return source.summary if source.path else f"{source.summary}; not fetched yet"
    if source.kind == "folder":
        return f"the folder {source.path}"
    if source.kind == "hub":
        return f"{source.path} on the Hugging Face hub"
    return f"{source.model_id} at {source.base_url}; can be evaluated, not trained"
