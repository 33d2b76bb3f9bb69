"""Given conversations as token sequences to learn from: only what an assistant says is a target.

    messages ──▶ prompt ids, reply ids (targets), bridge ids, reply ids (targets), …

The ids are those that sampling would have had: a prompt is encoded with the header of the reply, the reply from there
to the end of its turn. Where a template writes earlier turns otherwise than before (reasoning that is left out), a new
sequence begins, as it would in a rollout.
"""

__all__ = ["Given", "supervised_sequences"]

from collections.abc import Sequence
from dataclasses import dataclass

from rllm.errors import ContextLengthError, TemplateError
from rllm.rendering.messages import Message
from rllm.rendering.renderer import Renderer


@dataclass(frozen=True)
class Given:
    """One sequence, ``tokens`` and whether each is a target."""

    tokens: tuple[int, ...]
    is_target: tuple[bool, ...]


def supervised_sequences(
    renderer: Renderer, messages: Sequence[Message], tools: Sequence[Message] | None = None
) -> list[Given]:
    """The sequences of one conversation; none where no assistant speaks.

    Raises TemplateError where the template can't tell what of its text is the reply, ContextLengthError where a
    sequence is longer than the model's context: nothing is cut off.
    """
    found: list[Given] = []
    text, tokens, targets = "", list[int](), list[bool]()
    for n, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        prompt = renderer.text(messages[:n], tools, generation=True)
        reply = _reply(renderer, prompt, renderer.text(messages[: n + 1], tools, generation=False), n)
        if tokens and prompt.startswith(text):
            bridge = renderer.encode(prompt[len(text) :])
        else:
            if tokens:
                found.append(Given(tuple(tokens), tuple(targets)))
            tokens, targets, bridge = [], [], renderer.encode(prompt)
        reply_ids = renderer.encode(reply)
        tokens += [*bridge, *reply_ids]
        targets += [False] * len(bridge) + [True] * len(reply_ids)
        text = prompt + reply
        if len(tokens) > renderer.context_tokens:
            raise ContextLengthError(len(tokens), renderer.context_tokens)
    if tokens:
        found.append(Given(tuple(tokens), tuple(targets)))
    return found


def _reply(renderer: Renderer, prompt: str, whole: str, n: int) -> str:
    """What the template has written of message n, up to the end of its turn."""
    if not whole.startswith(prompt):
        raise TemplateError(
            f"message {n} (role 'assistant'): the chat template writes it otherwise than it asks for it, so what of "
            "the text is the reply can't be told. Choose a model with another template"
        )
    reply = whole[len(prompt) :]
    if renderer.end_of_turn is None:
        return reply
    end = str(renderer.tokenizer.decode([renderer.end_of_turn]))
    said, mark, _ = reply.partition(end)
    return said + mark
