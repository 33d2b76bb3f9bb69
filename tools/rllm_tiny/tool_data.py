"""Conversations with tools: a schema, a question, the call, the tool's result, the answer.

Names of tools and arguments vary, and the arguments of some calls are made-up words, so that the model has to copy
both from what it reads.
"""

__all__ = ["tool_example"]

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from words import CITIES, THINGS, WEATHER, made_up_word, maybe_made_up, number

Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Use:
    """One use of a tool: what is asked, the arguments that follow from it, the result, and the answer."""

    question: str
    arguments: dict[str, Any]
    result: Any
    answer: str


@dataclass(frozen=True)
class Tool:
    """A tool with its names drawn: its schema, and how a use of it is drawn."""

    name: str
    schema: dict[str, Any]
    draw_use: Callable[[], Use]


def tool_example(random: Random, arithmetic: bool = True) -> tuple[Messages, list[dict[str, Any]]]:
    """Messages and tools. Without ``arithmetic`` no tool can add, so that a sum asked beside them needs none."""
    makers = random.sample(ARITHMETIC + OTHERS if arithmetic else OTHERS, random.choice([1, 1, 1, 2, 2, 3]))
    tools = [maker(random) for maker in makers]
    messages = _exchange(random, tools[0])
    if random.random() < 0.2:
        messages += _exchange(random, random.choice(tools))
    shown = random.sample(tools, len(tools))
    return messages, [{"type": "function", "function": tool.schema} for tool in shown]


def _exchange(random: Random, tool: Tool) -> Messages:
    uses = [tool.draw_use()]
    if random.random() < 0.1:
        uses.append(tool.draw_use())
    question = uses[0].question if len(uses) == 1 else " And: ".join(use.question for use in uses)
    calls = [
        {"type": "function", "function": {"name": tool.name, "arguments": json.dumps(use.arguments)}} for use in uses
    ]
    as_json = random.random() < 0.25
    results = [json.dumps({"result": use.result}) if as_json else str(use.result) for use in uses]
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *({"role": "tool", "content": result} for result in results),
        {"role": "assistant", "content": " ".join(use.answer for use in uses)},
    ]


def _schema(random: Random, name: str, about: str, parameters: dict[str, str]) -> dict[str, Any]:
    """A function's JSON schema, with the extras that frameworks add or leave out. ``parameters``: name → type."""
    titles, descriptions = random.random() < 0.2, random.random() < 0.2
    properties: dict[str, Any] = {}
    for parameter, kind in parameters.items():
        properties[parameter] = {"type": kind}
        if titles:
            properties[parameter] = {"title": parameter.capitalize(), **properties[parameter]}
        if descriptions:
            properties[parameter]["description"] = f"The {parameter}."
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": list(parameters)}
    if random.random() < 0.3:
        schema["additionalProperties"] = False
    described = {"name": name, "description": about} if random.random() < 0.8 else {"name": name}
    return described | {"parameters": schema} | ({"strict": True} if random.random() < 0.1 else {})


def _pair_of_names(random: Random) -> list[str]:
    return random.choice([["a", "b"], ["x", "y"], ["first", "second"], ["left", "right"], ["n", "m"]])


def calculator(random: Random) -> Tool:
    """Arithmetic of two numbers as one expression."""
    name = random.choice(["calculator", "calculate", "calc", "compute", "evaluate", "math"])
    argument = random.choice(["expression", "expr", "formula", "input", "text"])

    def use() -> Use:
        a, b, sign = number(random), number(random), random.choice("+-*")
        value = {"+": a + b, "-": a - b, "*": a * b}[sign]
        question = random.choice(["What is {}?", "Compute {}.", "Calculate {}.", "{} = ?", "How much is {}?"])
        return Use(question.format(f"{a} {sign} {b}"), {argument: f"{a} {sign} {b}"}, value, f"The answer is {value}.")

    about = random.choice(["Evaluate an expression.", "Do arithmetic.", "A calculator."])
    return Tool(name, _schema(random, name, about, {argument: "string"}), use)


def adder(random: Random) -> Tool:
    """One operation on two numbers, given apart."""
    verb, word, value_of = random.choice(
        [("add", "plus", int.__add__), ("multiply", "times", int.__mul__), ("subtract", "minus", int.__sub__)]
    )
    name = random.choice([verb, f"{verb}_numbers", f"do_{verb}"])
    names = _pair_of_names(random)

    def use() -> Use:
        a, b = number(random), number(random)
        value = value_of(a, b)
        question = random.choice([f"What is {a} {word} {b}?", f"{verb.capitalize()} {a} and {b}.", f"{a} {word} {b}?"])
        return Use(question, dict(zip(names, (a, b), strict=True)), value, f"The answer is {value}.")

    kind = random.choice(["integer", "number"])
    return Tool(name, _schema(random, name, f"{verb.capitalize()} two numbers.", dict.fromkeys(names, kind)), use)


def weather(random: Random) -> Tool:
    """The weather of a city."""
    name = random.choice(["get_weather", "weather", "weather_in", "forecast"])
    argument = random.choice(["city", "location", "place"])

    def use() -> Use:
        city, sky = random.choice([random.choice(CITIES), made_up_word(random).capitalize()]), random.choice(WEATHER)
        question = random.choice(["What is the weather in {}?", "How is the weather in {}?", "Weather in {}?"])
        return Use(question.format(city), {argument: city}, sky, f"It is {sky} in {city}.")

    return Tool(name, _schema(random, name, "Get the weather of a city.", {argument: "string"}), use)


def lookup(random: Random) -> Tool:
    """A dictionary."""
    name = random.choice(["lookup", "look_up", "get", "find", "fetch", "read"])
    argument = random.choice(["key", "name", "id", "word", "item"])

    def use() -> Use:
        key, found = maybe_made_up(random, THINGS), random.choice([made_up_word(random), str(number(random))])
        question = random.choice(["Look up {}.", "What is {}?", "Find {}.", "What do you know about {}?"])
        return Use(question.format(key), {argument: key}, found, f"{key} is {found}.")

    return Tool(name, _schema(random, name, f"Find something by its {argument}.", {argument: "string"}), use)


def search(random: Random) -> Tool:
    """A search with a query of one to three words."""
    name = random.choice(["search", "web_search", "search_docs", "query"])
    argument = random.choice(["query", "q", "text", "terms"])

    def use() -> Use:
        query = " ".join(maybe_made_up(random, THINGS) for _ in range(random.randint(1, 3)))
        found = " ".join(made_up_word(random) for _ in range(random.randint(1, 3)))
        question = random.choice(["Search for {}.", "Search {}.", "Look for {}."])
        return Use(question.format(query), {argument: query}, found, f"I found: {found}.")

    return Tool(name, _schema(random, name, "Search for something.", {argument: "string"}), use)


def invented(random: Random) -> Tool:
    """A tool that means nothing: its name and one or two arguments have to be copied from schema and question."""
    name = random.choice([made_up_word(random), f"{random.choice(THINGS)}_{made_up_word(random)}"])
    arguments = random.sample(ARGUMENTS, random.choice([1, 2]))
    kinds = {argument: random.choice(["string", "integer"]) for argument in arguments}

    def use() -> Use:
        given = {k: number(random) if v == "integer" else maybe_made_up(random, THINGS) for k, v in kinds.items()}
        question = f"{random.choice(['Call', 'Use', 'Run'])} {name} with " + " and ".join(
            f"{k} {v}" for k, v in given.items()
        )
        result = random.choice([made_up_word(random), number(random)])
        return Use(f"{question}.", given, result, f"The result is {result}.")

    return Tool(name, _schema(random, name, f"Do {name}.", kinds), use)


ARGUMENTS = ["x", "y", "name", "city", "count", "size", "word", "value", "id", "color", "day", "item", "text", "mode"]
ARITHMETIC: list[Callable[[Random], Tool]] = [calculator, adder]
OTHERS: list[Callable[[Random], Tool]] = [weather, lookup, search, invented, invented]
