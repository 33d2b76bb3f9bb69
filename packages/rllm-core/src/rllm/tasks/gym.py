"""The generators of reasoning-gym as task sources, with their own settings and their own verifiers.

reasoning-gym (Stojanovski et al., 2025, https://github.com/open-thought/reasoning-gym) generates a question from a
seed and an index. Here distinct questions are drawn and split by question. It is imported when tasks are made, or when
a generator's settings are asked for.
"""

from __future__ import annotations

__all__ = ["GymTask"]

import importlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model

from rllm.config import Settings
from rllm.errors import ConfigError, TaskError
from rllm.tasks.gym_verifiers import ANSWER_INSTRUCTION, NUMBER_INSTRUCTION, AnswerVerifier, NumberVerifier
from rllm.tasks.source import ListedTasks
from rllm.tasks.split import HeldOut, split_by_question
from rllm.types import Task

OURS = ("seed", "size")
"""Fields of every generator's configuration that are ours to set."""

EXAMPLES = ("possible_answer", "example_answer", "example_correct_answer")
"""Where the metadata have a right answer among many."""

TAGS = 24
"""Tokens of a reply besides its answer: the tags around it."""


@dataclass(frozen=True)
class GymTask:
    """One of reasoning-gym's generators."""

    name: str
    """Also reasoning-gym's."""
    summary: str
    options: Mapping[str, Any] | None = None
    """The generator's own settings with our defaults; None: with its own defaults, read when they are asked for. A
    reply to a task that has them ends with a number; any other stands in <answer> tags."""
    types: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The types of settings that their default does not tell."""
    size: int = 2_000
    held_out: int = 200
    max_tokens: int | None = 24
    """None: as the longest answer asks for."""

    @cached_property
    def settings(self) -> type[Settings]:
        """The typed settings: the generator's, and how many questions are drawn and held out.

        Raises TaskError where the generator is to be asked and reasoning-gym is not installed.
        """
        found: dict[str, Any]
        if self.options is None:
            found = self._own_options()
        else:
            found = {name: (self.types.get(name, _type_of(value)), value) for name, value in self.options.items()}
        found["size"] = (int, Field(default=self.size, ge=1, description="Different questions in all."))
        found["held_out"] = (HeldOut, Field(default=self.held_out, description="A count of them, or a share (0.1)."))
        found["data_seed"] = (int, Field(default=0, ge=0, description="Which questions are drawn and held out."))
        name = f"{self.name.title().replace('_', '')}Settings"
        return create_model(name, __base__=_AnySettings, __doc__=f"Of the task {self.name}.", **found)

    def _own_options(self) -> dict[str, Any]:
        _, config = _generator(self.name)
        types = get_type_hints(config)
        found: dict[str, Any] = {}
        for option in fields(config):
            if option.name not in OURS:
                default = option.default_factory() if option.default_factory is not MISSING else option.default
                found[option.name] = (_holding(types[option.name], default), Field(default=default))
        return found

    def source(self, settings: BaseModel) -> ListedTasks:
        """Draw the questions. Raises ConfigError for settings that the generator refuses, TaskError where there are
        fewer different questions than asked for or reasoning-gym is not installed."""
        values = {name: getattr(settings, name) for name in type(settings).model_fields}
        size, held_out, seed = values.pop("size"), values.pop("held_out"), values.pop("data_seed")
        draws = self._draws(size)
        dataset = self._dataset(values, seed, draws)
        entries = self._draw(dataset, size, draws, values)
        instruction = ANSWER_INSTRUCTION if self.options is None else NUMBER_INSTRUCTION
        tasks = [
            Task(
                id=f"{self.name}-{k}",
                prompt=question + instruction,
                answer=_answer(entry),
                data=_as_json(entry["metadata"]),
                source=self.name,
            )
            for k, (question, entry) in enumerate(entries.items())
        ]
        verifier = (AnswerVerifier if self.options is None else NumberVerifier)(
            self.name, dataset, {task.prompt: entry for task, entry in zip(tasks, entries.values(), strict=True)}
        )
        train, validation = split_by_question(tasks, held_out, seed=seed, where=self.name)
        return ListedTasks(
            name=self.name,
            train_tasks=tuple(train),
            held_out_tasks=tuple(validation),
            evaluator=verifier,
            max_tokens=self.max_tokens or max(len(task.answer or "") for task in tasks) + TAGS,
        )

    def _draws(self, size: int) -> int:
        """After how many questions it is said that there are no ``size`` different ones.

        Of N questions in all, some N·ln(N) draws are expected to meet each; this leaves ample room, but for those
        generators that make all their items beforehand, and refuse to make more.
        """
        draws = 1_000 + 60 * size
        return draws if self.options is not None else max(2 * size, min(draws, 20_000))

    def _dataset(self, values: dict[str, Any], seed: int, draws: int) -> Any:
        cls, config = _generator(self.name)
        # Item i is drawn from seed + i there, so neighbouring seeds would share all but one question.
        options = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}
        try:
            chosen = config(seed=seed * 1_000_003, size=draws, **options)
            if hasattr(chosen, "validate"):
                chosen.validate()
            return cls(config=chosen)
        except (AssertionError, ValueError, TypeError) as error:
            message = str(error)
            named = {name: v for name, v in values.items() if name in message} or values
            given = ", ".join(f"{self.name}.{name}={v}" for name, v in named.items())
            raise ConfigError(f"{given} won't do: {message or 'the generator refuses it'}") from error

    def _draw(self, dataset: Any, size: int, draws: int, values: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """``size`` different questions and their entries, in the order in which they first come up."""
        found: dict[str, dict[str, Any]] = {}
        for index in range(draws):
            if len(found) == size:
                break
            entry = self._entry(dataset, index)
            found.setdefault(str(entry["question"]).strip(), entry)
        if len(found) < size:
            given = ", ".join(f"{self.name}.{name}={v}" for name, v in values.items())
            raise TaskError(
                f"{self.name}.size={size}, but only {len(found)} different questions came up in {draws} draws with "
                f"{given}. Lower {self.name}.size to {len(found)}, or widen the settings"
            )
        return found

    def _entry(self, dataset: Any, index: int) -> dict[str, Any]:
        try:
            return dataset[index]
        except (ArithmeticError, LookupError, ValueError, TypeError) as error:
            raise TaskError(
                f"{self.name}: reasoning-gym's generator raised {type(error).__name__}: {error}. Try other settings"
            ) from error


class _AnySettings(Settings):
    model_config = ConfigDict(arbitrary_types_allowed=True)


def _type_of(value: Any) -> Any:
    return tuple[type(value[0]), ...] if isinstance(value, tuple) else type(value)


def _holding(annotation: Any, default: Any) -> Any:
    """The type of a setting; some of the package's annotations don't fit their own defaults: then any value goes, and
    the generator's own check decides."""
    try:
        TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(default)
    except (ValidationError, PydanticUserError):
        return Any
    return annotation


def _answer(entry: Mapping[str, Any]) -> str | None:
    """A right answer. Where several are, it stands in the metadata; two generators give none."""
    known = [entry["answer"], *(entry["metadata"].get(key) for key in EXAMPLES)]
    answer = next((a for a in known if a is not None), None)
    return json.dumps(answer) if isinstance(answer, Mapping) else None if answer is None else str(answer)


def _as_json(metadata: Any) -> dict[str, Any]:
    """As a task is written to files: tuples become lists, and what JSON has no form for becomes text."""
    return json.loads(json.dumps(metadata, default=str, skipkeys=False))


def _generator(name: str) -> tuple[Any, Any]:
    """A generator's dataset class and its configuration class."""
    try:
        importlib.import_module("reasoning_gym")
        return importlib.import_module("reasoning_gym.factory").DATASETS[name]
    except ImportError as error:
        raise TaskError(
            f'the task {name!r} needs reasoning-gym ({error}). Install it with: pip install "rllm-core[train]"'
        ) from error
    except KeyError as error:
        raise TaskError(f"the reasoning-gym that is installed has no {name!r}; pip install -U reasoning-gym") from error
