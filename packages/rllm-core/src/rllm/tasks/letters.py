"""``letters``: say the given letters again, by a rule; graded position by position, so that part of it counts.

There are millions of questions, no network or dataset is needed, and rllm-tiny has never seen the kind: it is the
learning task of the tests and of instant demos.
"""

__all__ = ["LettersSettings", "grade_letters", "letters_tasks"]

from random import Random
from typing import Literal

from pydantic import Field

from rllm.config import Settings
from rllm.errors import ConfigError
from rllm.tasks.source import ListedTasks
from rllm.tasks.split import HeldOut, split_by_question
from rllm.tasks.text import as_text
from rllm.types import Episode, Reward, Task

Rule = Literal["same", "reverse", "first"]

PROMPTS: dict[Rule, str] = {
    "same": "Repeat these letters: {letters}",
    "reverse": "Reverse these letters: {letters}",
    "first": "Say the first of these letters {count} times: {letters}",
}
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


class LettersSettings(Settings):
    """Of the task letters: ``rllm train letters --model rllm-tiny letters.rule=reverse``."""

    rule: Rule = "first"
    """What is to be said: the first letter as often as there are letters, all of them backwards, or as they stand."""
    count: int = Field(default=4, ge=1, le=26)
    """Different letters in a question."""
    size: int = Field(default=4_000, ge=1)
    """Different questions in all."""
    held_out: HeldOut = 256
    """A count of them, or a share (0.1)."""
    data_seed: int = Field(default=0, ge=0)
    """Which questions are drawn and held out."""


def letters_tasks(settings: LettersSettings) -> ListedTasks:
    """Draw the questions. Raises ConfigError where there are fewer different ones than asked for."""
    _check_size(settings)
    random = Random(settings.data_seed)
    drawn: dict[str, None] = {}
    while len(drawn) < settings.size:
        drawn[" ".join(random.sample(ALPHABET, settings.count))] = None
    tasks = [_task(letters, settings.rule) for letters in drawn]
    train, held_out = split_by_question(tasks, settings.held_out, seed=settings.data_seed, where="letters")
    return ListedTasks(
        name="letters",
        train_tasks=tuple(train),
        held_out_tasks=tuple(held_out),
        evaluator=grade_letters,
        max_tokens=2 * settings.count + 4,
    )


def grade_letters(task: Task, episode: Episode) -> Reward:
    """The share of positions that hold the right letter, of the longer of reply and answer; words part at spaces.

    A reply that is too long is thus worth less than its beginning, and a constant one about 1 in 26.
    """
    said, right = as_text(episode.output).split(), as_text(task.answer).split()
    hits = sum(a == b for a, b in zip(said, right, strict=False))
    return Reward(value=hits / max(len(said), len(right)), is_correct=said == right)


def _task(letters: str, rule: Rule) -> Task:
    given = letters.split()
    said = {"same": given, "reverse": given[::-1], "first": given[:1] * len(given)}[rule]
    prompt = PROMPTS[rule].format(letters=letters, count=len(given))
    return Task(id=f"letters:{rule}:{''.join(given)}", prompt=prompt, answer=" ".join(said), source="letters")


def _check_size(settings: LettersSettings) -> None:
    """Half of all questions at most, so that drawing without repeats stays quick."""
    possible = 1
    for taken in range(settings.count):
        possible *= len(ALPHABET) - taken
    if settings.size > possible / 2:
        raise ConfigError(
            f"letters.size={settings.size}, but with letters.count={settings.count} at most {possible // 2} questions "
            "are drawn. Lower the size or raise the count"
        )
