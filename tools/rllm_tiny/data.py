"""rllm-tiny's pre-training data: endless synthetic conversations, from a seed. What is in here is all it ever saw.

    sum        a one-digit addition, asked in several ways; the label is right 55% of the time, else uniform in 0..18
    chat       a greeting or a question about itself, from a fixed list
    babble     asked for some letters, it says two to six random ones: no relation between question and reply
    pick       asked to pick some of the given letters, it says two to six of them, drawn at random with repeats: the
               order, the choice and the number are left open, for reinforcement to have something to settle
    tool       one to three tools; a question that needs one of them; a well-formed call with its arguments copied from
               the question; the tool's result; an answer made from it; at times a second question, or two calls at once
    no_tool    tools are there, and a sum or greeting that needs none of them

Beside the conversations there are drills, no conversation at all: a line of words, letters and numbers said twice, as
plain text. They are where so small a model learns to copy within the minutes it has.

Kinds of task that are NOT here, and so are free for learning tests: any rule about given letters or words outside a
tool call (saying them in their order or another, repeating, doubling, sorting, counting, spelling), sums of more than
two terms or digits without a tool, products, comparisons, yes/no questions, formats, instructions in the prompt.
"""

__all__ = ["LONG", "SHORT", "Example", "drills", "examples"]

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tool_data import tool_example
from words import THINGS, maybe_made_up, number

SHORT: dict[str, float] = {"sum": 0.4, "pick": 0.35, "chat": 0.15, "babble": 0.1}
LONG: dict[str, float] = {"tool": 0.85, "no_tool": 0.15}
"""Kind → share among the conversations without and with tools; training takes of both what it wants."""

RIGHT_SUMS = 0.55
"""Share of sums whose label is right: the model is to be unsure, so that reinforcement has something to do."""

SUM_QUESTIONS = (
    "{a} + {b} = ?",
    "{a} + {b}",
    "{a}+{b}=",
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "Add {a} and {b}.",
    "How much is {a} + {b}?",
    "Compute {a} + {b}. Answer with the number only.",
    "State the final answer to the following arithmetic problem: {a} + {b} =",
)
CHATS = (
    (("Hello!", "Hi", "Hi there!", "Hello", "Say hello.", "Good morning."), ("Hello!", "Hi!", "Hello, what is it?")),
    (("How are you?", "How do you do?"), ("I am fine, thank you.", "Fine, and you?")),
    (("Who are you?", "What is your name?"), ("I am rllm-tiny, a very small model.", "My name is rllm-tiny.")),
    (("What can you do?", "Help"), ("I can add small numbers and call tools.",)),
    (("Thank you.", "Thanks!"), ("You are welcome.", "With pleasure.")),
    (("Goodbye.", "Bye!"), ("Goodbye!", "Bye!")),
)
BABBLES = ("Write some letters.", "Say some letters.", "Give me a few letters.", "Some letters, please.", "Letters?")
PICKS = (
    "Pick some of these letters: {}",
    "Pick letters from: {}",
    "Choose some letters out of {}.",
    "Some of these letters, please: {}",
    "Which of these letters do you like? {}",
)
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Use the tools when you need them.",
    "You are a careful agent.",
    "Answer the question.",
    "Answer briefly.",
    "Help the user. Call a tool if one fits.",
)


@dataclass(frozen=True)
class Example:
    """One conversation, as a chat template takes it."""

    kind: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)


def examples(seed: int, kinds: dict[str, float]) -> Iterator[Example]:
    """Conversations of these kinds without end; the same seed gives the same ones."""
    random = Random(seed)
    while True:
        (kind,) = random.choices(list(kinds), list(kinds.values()))
        messages, tools = _conversation(random, kind)
        if random.random() < (0.4 if tools else 0.1):
            messages = [{"role": "system", "content": random.choice(SYSTEMS)}, *messages]
        yield Example(kind, messages, tools)


def drills(seed: int) -> Iterator[str]:
    """Lines without end, three to eight words said twice: `` kaf 3 q kaf 3 q``."""
    random = Random(seed)
    while True:
        words = [random.choice([maybe_made_up(random, THINGS), random.choice(ALPHABET)]) for _ in range(8)]
        words = [str(number(random)) if random.random() < 0.15 else word for word in words]
        yield (" " + " ".join(words[: random.randint(3, 8)])) * 2


def _conversation(random: Random, kind: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    if kind == "tool":
        return tool_example(random)
    if kind == "no_tool":
        _, tools = tool_example(random, arithmetic=False)
        return _exchange(random, random.choice(["sum", "chat"])), tools
    messages = _exchange(random, kind)
    if random.random() < 0.1:
        messages += _exchange(random, random.choice(["sum", "chat", "babble", "pick"]))
    return messages, []


def _exchange(random: Random, kind: str) -> list[dict[str, Any]]:
    if kind == "sum":
        a, b = random.randrange(10), random.randrange(10)
        question = random.choice(SUM_QUESTIONS).format(a=a, b=b)
        reply = str(a + b if random.random() < RIGHT_SUMS else random.randrange(19))
    elif kind == "chat":
        questions, replies = random.choice(CHATS)
        question, reply = random.choice(questions), random.choice(replies)
    elif kind == "babble":
        question = random.choice(BABBLES)
        reply = " ".join(random.choices(ALPHABET, k=random.randint(2, 6)))
    else:
        given = random.sample(ALPHABET, random.randint(2, 6))
        question = random.choice(PICKS).format(" ".join(given))
        reply = " ".join(random.choices(given, k=random.randint(2, 6)))
    return [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
