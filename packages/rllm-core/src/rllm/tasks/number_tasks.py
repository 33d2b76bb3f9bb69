"""The number tasks of reasoning-gym, graded by their own verifiers, with the defaults that suit a small model.

reasoning-gym (Stojanovski et al., 2025, https://github.com/open-thought/reasoning-gym) generates a question from a
seed and an index. Here distinct questions are drawn and split by question. It is imported when tasks are made.
"""

from __future__ import annotations

__all__ = ["NUMBER_TASKS", "NumberTask"]

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, Field, create_model

from rllm.config import Settings
from rllm.errors import ConfigError, TaskError
from rllm.tasks.source import ListedTasks
from rllm.tasks.split import HeldOut, split_by_question
from rllm.tasks.text import as_text, last_number, plain_number
from rllm.types import Episode, Reward, Task

INSTRUCTION = "\nAnswer with only the final number."


@dataclass(frozen=True)
class NumberTask:
    """One of reasoning-gym's generators: its name there and here, and our defaults of its settings."""

    name: str
    summary: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The generator's own settings with our defaults; the names and types are reasoning-gym's."""
    types: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The types of settings that their default does not tell."""
    size: int = 2_000
    held_out: int = 200
    max_tokens: int = 24

    @cached_property
    def settings(self) -> type[Settings]:
        """The typed settings: the generator's, and how many questions are drawn and held out."""
        options: dict[str, Any] = {
            name: (self.types.get(name, _type_of(value)), value) for name, value in self.options.items()
        }
        return create_model(
            f"{self.name.title().replace('_', '')}Settings",
            __base__=Settings,
            __doc__=f"Of the task {self.name}.",
            size=(int, Field(default=self.size, ge=1, description="Different questions in all.")),
            held_out=(HeldOut, Field(default=self.held_out, description="A count of them, or a share (0.1).")),
            data_seed=(int, Field(default=0, ge=0, description="Which questions are drawn and held out.")),
            **options,
        )

    def source(self, settings: BaseModel) -> ListedTasks:
        """Draw the questions. Raises ConfigError for settings that the generator refuses, TaskError where there are
        fewer different questions than asked for or reasoning-gym is not installed."""
        values = settings.model_dump()
        size, held_out, seed = values.pop("size"), values.pop("held_out"), values.pop("data_seed")
        dataset = self._dataset(values, seed)
        tasks = self._draw(dataset, size, values)
        train, validation = split_by_question(tasks, held_out, seed=seed, where=self.name)
        return ListedTasks(
            name=self.name,
            train_tasks=tuple(train),
            held_out_tasks=tuple(validation),
            evaluator=Verifier(self.name, dataset),
            max_tokens=self.max_tokens,
        )

    def _dataset(self, values: dict[str, Any], seed: int) -> Any:
        gym = _import_reasoning_gym(self.name)
        # Item i is drawn from seed + i there, so neighbouring seeds would share all but one question.
        options = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}
        try:
            return gym.create_dataset(self.name, seed=seed * 1_000_003, size=2**31, **options)
        except (AssertionError, ValueError, TypeError) as error:
            message = str(error)
            named = {name: v for name, v in values.items() if name in message} or values
            given = ", ".join(f"{self.name}.{name}={v}" for name, v in named.items())
            raise ConfigError(f"{given} won't do: {message or 'the generator refuses it'}") from error

    def _draw(self, dataset: Any, size: int, values: dict[str, Any]) -> list[Task]:
        """``size`` different questions, in the order in which they first come up."""
        found: dict[str, Task] = {}
        # With N questions in all, some N·ln(N) draws are expected to meet each; this leaves ample room.
        limit = 1_000 + 60 * size
        for index in range(limit):
            if len(found) == size:
                break
            entry = self._entry(dataset, index)
            question = str(entry["question"]).strip()
            if question not in found:
                # Through JSON, because a task is written to files: tuples and decimals would come back as others.
                metadata = json.loads(json.dumps(entry["metadata"], default=str))
                found[question] = Task(
                    id=f"{self.name}-{len(found)}",
                    prompt=question + INSTRUCTION,
                    answer=str(entry["answer"]),
                    data=metadata,
                    source=self.name,
                )
        if len(found) < size:
            given = ", ".join(f"{self.name}.{name}={v}" for name, v in values.items())
            raise TaskError(
                f"{self.name}.size={size}, but only {len(found)} different questions came up in {limit} draws with "
                f"{given}. Lower {self.name}.size to {len(found)}, or widen the settings"
            )
        return list(found.values())

    def _entry(self, dataset: Any, index: int) -> dict[str, Any]:
        try:
            return dataset[index]
        except (ArithmeticError, LookupError, ValueError, TypeError) as error:
            raise TaskError(
                f"{self.name}: reasoning-gym's generator raised {type(error).__name__}: {error}. Try other settings"
            ) from error


class Verifier:
    """Grades by the dataset's own verifier: 1 for the right number, 0 for any other.

    The number is the last one of the output. The verifiers' credit for a right number's digits within a wrong one
    (half a point for "13" where 1 is right) is not passed on: it would reward length, not arithmetic.
    """

    def __init__(self, name: str, dataset: Any) -> None:
        self.name, self._dataset = f"{name} verifier", dataset

    def __call__(self, task: Task, episode: Episode) -> Reward:
        number = last_number(as_text(episode.output))
        if number is None:
            return Reward(value=0.0, is_correct=False, signals={"answered": 0.0})
        entry = {"question": task.prompt.removesuffix(INSTRUCTION), "answer": task.answer, "metadata": task.data}
        is_correct = float(self._dataset.score_answer(plain_number(number), entry)) >= 1.0
        return Reward(value=float(is_correct), is_correct=is_correct, signals={"answered": 1.0})


def _type_of(value: Any) -> Any:
    return tuple[type(value[0]), ...] if isinstance(value, tuple) else type(value)


def _import_reasoning_gym(name: str) -> Any:
    try:
        return importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise TaskError(
            f'the task {name!r} needs reasoning-gym ({error}). Install it with: pip install "rllm-core[train]"'
        ) from error


def _terms(terms: tuple[int, int], digits: tuple[int, int], **more: Any) -> dict[str, Any]:
    return {
        "min_terms": terms[0],
        "max_terms": terms[1],
        "min_digits": digits[0],
        "max_digits": digits[1],
        **more,
    }


NUMBER_TASKS = (
    NumberTask(
        "chain_sum",
        "sums and differences, two terms of one digit unless set otherwise (200 questions in all)",
        _terms((2, 2), (1, 1), allow_negation=False),
        size=200,
        held_out=64,
    ),
    NumberTask(
        "decimal_chain_sum",
        "sums and differences of decimals",
        _terms((2, 2), (1, 1), min_decimal_places=1, max_decimal_places=1, allow_negation=False),
    ),
    NumberTask(
        "products",
        "products of two numbers of one digit (100 questions in all)",
        _terms((2, 2), (1, 1), allow_negation=False),
        size=100,
        held_out=32,
    ),
    NumberTask(
        "gcd",
        "greatest common divisors",
        {"min_numbers": 2, "max_numbers": 2, "min_value": 1, "max_value": 100},
    ),
    NumberTask(
        "lcm",
        "least common multiples",
        {"min_numbers": 2, "max_numbers": 2, "min_value": 1, "max_value": 20},
        size=200,
        held_out=64,
    ),
    NumberTask(
        "basic_arithmetic",
        "expressions with + - * / and parentheses",
        _terms(
            (2, 3),
            (1, 1),
            operators=("+", "-", "*", "/"),
            allow_parentheses=True,
            allow_negation=False,
            format_style="simple",
            whitespace="single",
        ),
        # The generator takes any text for these two, and makes something else of it.
        types={"format_style": Literal["simple", "natural"], "whitespace": Literal["no_space", "single", "random"]},
        size=1_000,
    ),
    NumberTask(
        "decimal_arithmetic",
        "expressions of decimals, to a number of significant digits",
        {"min_num_decimal_places": 1, "max_num_decimal_places": 1, "min_terms": 2, "max_terms": 2, "precision": 6},
    ),
    NumberTask(
        "simple_equations",
        "linear equations in one unknown",
        {
            "min_terms": 2,
            "max_terms": 2,
            "min_value": 1,
            "max_value": 10,
            "operators": ("+", "-", "*"),
            "operators_weights": (0.4, 0.4, 0.2),
        },
    ),
    NumberTask("count_bits", "how many binary digits are 1", {"min_n": 1, "max_n": 10_000}),
    NumberTask("count_primes", "how many primes lie between two numbers", {"min_n": 1, "max_n": 100}),
    NumberTask(
        "leg_counting",
        "how many legs some animals have together",
        {"min_animals": 2, "max_animals": 3, "min_instances": 1, "max_instances": 5},
        max_tokens=64,
    ),
    NumberTask("letter_counting", "how often a letter stands in a text", {"min_words": 3, "max_words": 5}),
    NumberTask(
        "number_sequence",
        "the next number of a sequence",
        {"min_terms": 4, "max_terms": 6, "min_value": -20, "max_value": 20, "max_complexity": 2},
    ),
    NumberTask(
        "power_function",
        "powers, to three significant figures",
        {"min_base": -10.0, "max_base": 10.0, "min_exponent": 0, "max_exponent": 3},
        max_tokens=32,
    ),
)
"""What is registered; each name is reasoning-gym's own."""
