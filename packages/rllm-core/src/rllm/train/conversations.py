"""The conversations of a file for supervised fine-tuning, as rows, split into those to train on and those held out."""

__all__ = ["Conversation", "conversations_of"]

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm.errors import ContextLengthError, TaskError, TemplateError
from rllm.rendering import Renderer, supervised_sequences
from rllm.tasks.formats import read_records
from rllm.types import Row
from rllm.update.supervised import given_row

NEEDS = 'It needs "messages" (a list of {"role", "content"}), or "prompt" and "answer"; see docs/sft.md'


@dataclass(frozen=True)
class Conversation:
    """One line or row of the file."""

    place: str
    rows: tuple[Row, ...]
    """More than one where the template writes earlier turns otherwise later on."""
    key: str
    """A hash of what was said: equal conversations have the same."""

    @property
    def n_targets(self) -> int:
        return sum(row.n_targets for row in self.rows)


def conversations_of(
    path: str, renderer: Renderer, *, held_out: float, seed: int
) -> tuple[list[Conversation], list[Conversation]]:
    """Those to train on, and the held-out share; equal conversations stand on one side.

    Raises TaskError that names the file and line: for a form that is not known, a conversation in which no assistant
    speaks, and one that is longer than the model's context.
    """
    found = [_conversation(where, record, renderer) for where, record in read_records(path)]
    if not found:
        raise TaskError(f"{path} holds no conversations. {NEEDS}")
    keys = sorted({c.key for c in found}, key=lambda key: hashlib.sha256(f"{seed}\n{key}".encode()).digest())
    kept = set(keys[round(held_out * len(keys)) :])
    if not kept:
        raise TaskError(f"{path}: held_out={held_out} of {len(keys)} different conversations leaves none to train on")
    return [c for c in found if c.key in kept], [c for c in found if c.key not in kept]


def _conversation(where: str, record: Mapping[str, Any], renderer: Renderer) -> Conversation:
    messages, tools = _messages(where, record), record.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise TaskError(f'{where}: "tools" is {tools!r:.80}; it must be a list of tools in OpenAI\'s form')
    try:
        given = supervised_sequences(renderer, messages, tools or None)
    except ContextLengthError as error:
        raise TaskError(f"{where}: {error}. Shorten it, or take it out: nothing is cut off") from error
    except TemplateError as error:
        raise TaskError(f"{where}: {error}") from error
    if not given:
        raise TaskError(f"{where}: no message is an assistant's, so there is nothing to learn from. {NEEDS}")
    said = json.dumps([messages, tools], sort_keys=True, ensure_ascii=False)
    return Conversation(where, tuple(given_row(g, where) for g in given), hashlib.sha256(said.encode()).hexdigest())


def _messages(where: str, record: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    if "messages" in record:
        messages = record["messages"]
        if not isinstance(messages, list) or not messages:
            raise TaskError(f'{where}: "messages" is {messages!r:.80}; it must be a list. {NEEDS}')
        for n, message in enumerate(messages):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise TaskError(f'{where}: message {n} is {message!r:.80}; it must have a "role" and a "content"')
        return messages
    prompt, answer = record.get("prompt"), record.get("answer")
    if not isinstance(prompt, str) or not prompt.strip() or not isinstance(answer, str) or not answer.strip():
        raise TaskError(f"{where}: it has the fields {sorted(record)}. {NEEDS}")
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
