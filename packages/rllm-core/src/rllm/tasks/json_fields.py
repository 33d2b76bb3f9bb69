"""The task ``json_fields``: two facts of a person, asked for as a JSON object and nothing else.

An unlimited space of questions with partial rewards, for small instruction-tuned models: they come near the form now
and then from the start, so that most groups have a signal from the first batch.
"""

__all__ = ["JsonFieldsSettings", "grade_fields", "json_fields"]

import json
import random
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from rllm.config import Settings
from rllm.tasks.source import ListedTasks
from rllm.tasks.split import HeldOut, split_by_question
from rllm.tasks.text import as_text, normalise
from rllm.types import Episode, Reward, Task

# fmt: off
_VALUES: dict[str, Sequence[str | int]] = {
    "name": (
        "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ian", "Jana", "Kai", "Lena", "Max", "Nora",
        "Otto", "Pia", "Quinn", "Rosa", "Sam", "Tara", "Uma", "Vera", "Will", "Yara", "Zoe"
    ),
    "age": range(20, 80),
    "city": (
        "Rome", "Oslo", "Lima", "Cairo", "Delhi", "Paris", "Tokyo", "Madrid", "Quito", "Athens", "Dublin",
        "Hanoi", "Vienna", "Lisbon", "Prague", "Seoul"
    ),
    "job": (
        "baker", "nurse", "pilot", "teacher", "farmer", "lawyer", "painter", "doctor", "writer", "tailor",
        "singer", "dentist"
    ),
    "pet": ("cat", "dog", "horse", "parrot", "rabbit", "goat", "turtle", "hamster"),
    "food": ("rice", "soup", "pizza", "fish", "bread", "pasta", "salad", "curry", "cake", "cheese"),
}
# fmt: on

KEYS_SHARE = 0.4
"""Of the reward, for the asked keys; the rest is for their values."""
EMBEDDED_FACTOR = 0.5
"""What is left of the reward where anything but the object was written."""


class JsonFieldsSettings(Settings):
    """Of the task ``json_fields``."""

    size: int = Field(default=2_000, ge=1)
    """Different questions in all."""
    held_out: HeldOut = 200
    """A count of them, or a share (0.1)."""
    data_seed: int = 0
    """Which questions are drawn and held out."""


def json_fields(settings: JsonFieldsSettings) -> ListedTasks:
    """Draw ``size`` different questions and split them."""
    draw = random.Random(settings.data_seed)
    found: dict[str, Task] = {}
    while len(found) < settings.size:
        task = _question(draw, len(found))
        found.setdefault(task.prompt, task)
    train, held_out = split_by_question(
        [*found.values()], settings.held_out, seed=settings.data_seed, where="json_fields"
    )
    return ListedTasks(
        name="json_fields",
        train_tasks=tuple(train),
        held_out_tasks=tuple(held_out),
        evaluator=grade_fields,
        max_tokens=40,
    )


def _question(draw: random.Random, number: int) -> Task:
    """One of some 700 million."""
    facts = {key: draw.choice(values) for key, values in _VALUES.items()}
    first, second = draw.sample(list(facts), 2)
    prompt = (
        f"{facts['name']} is {facts['age']} years old, lives in {facts['city']}, works as a {facts['job']}, has a "
        f"{facts['pet']} and likes {facts['food']}. Reply with only a JSON object with the keys "
        f'"{first}" and "{second}".'
    )
    answer = json.dumps({first: facts[first], second: facts[second]})
    return Task(id=f"json_fields-{number}", prompt=prompt, answer=answer, source="json_fields")


def grade_fields(task: Task, episode: Episode) -> Reward:
    """From 0 to 1: 0.4 × asked keys / all keys, asked or given, + 0.6 × right values / asked keys; half of that where
    the reply holds anything besides the object.

    >>> task = Task(id="1", answer='{"age": 37, "city": "Rome"}')
    >>> grade_fields(task, Episode(output='{"age": "37", "city": "rome"}')).value
    1.0
    >>> grade_fields(task, Episode(output='It is {"age": 38, "city": "Rome"}.')).value
    0.35
    """
    wanted: dict[str, Any] = json.loads(as_text(task.answer))
    given, is_alone = _read_object(as_text(episode.output))
    keys = len(wanted.keys() & given.keys()) / len(wanted.keys() | given.keys())
    values = sum(key in given and _same(given[key], value) for key, value in wanted.items()) / len(wanted)
    value = (KEYS_SHARE * keys + (1 - KEYS_SHARE) * values) * (1.0 if is_alone else EMBEDDED_FACTOR)
    signals = {"is_alone": float(is_alone), "keys": keys, "values": values}
    return Reward(value=value, is_correct=is_alone and keys == values == 1, signals=signals)


def _same(given: Any, wanted: Any) -> bool:
    return isinstance(given, str | int) and normalise(str(given)) == normalise(str(wanted))


def _read_object(text: str) -> tuple[dict[str, Any], bool]:
    """The first JSON object of a text, empty where there is none, and whether it is all of the text."""
    start = text.find("{")
    while start >= 0:
        try:
            found, end = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            start = text.find("{", start + 1)
            continue
        return found, not (text[:start].strip() or text[end:].strip())
    return {}, False
