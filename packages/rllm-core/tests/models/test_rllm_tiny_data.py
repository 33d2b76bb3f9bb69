"""The published pre-training data of rllm-tiny: repeatable, well-formed, without the kinds kept for learning tests."""

import importlib
import json
import sys
from itertools import islice
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[4] / "tools" / "rllm_tiny"


@pytest.fixture(scope="module")
def data():
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield importlib.import_module("data")
    finally:
        sys.path.remove(str(SCRIPTS))
        for name in ("data", "tool_data", "words"):
            sys.modules.pop(name, None)


def drawn(data, seed=3, count=3000):
    return [e for kinds in (data.SHORT, data.LONG) for e in islice(data.examples(seed, kinds), count)]


def test_a_seed_gives_the_same_data_again_and_another_seed_gives_other_data(data):
    assert drawn(data, 1, 200) == drawn(data, 1, 200) != drawn(data, 2, 200)
    assert list(islice(data.drills(1), 50)) == list(islice(data.drills(1), 50)) != list(islice(data.drills(2), 50))


def test_every_call_fits_the_schema_of_a_tool_that_is_there(data):
    types = {"string": str, "integer": int, "number": int}
    count = 0
    for example in drawn(data):
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in example.tools}
        for call in (call["function"] for m in example.messages for call in m.get("tool_calls", [])):
            arguments, schema = json.loads(call["arguments"]), schemas[call["name"]]
            assert set(arguments) == set(schema["required"])
            assert all(isinstance(v, types[schema["properties"][k]["type"]]) for k, v in arguments.items())
            count += 1
    assert count > 2000


def test_every_result_follows_a_call_and_every_conversation_ends_with_the_assistant(data):
    for example in drawn(data):
        roles = [m["role"] for m in example.messages]
        assert roles[-1] == "assistant"
        calls = sum(len(m.get("tool_calls", [])) for m in example.messages)
        assert roles.count("tool") == calls


def test_no_conversation_asks_for_an_order_or_a_repetition_of_letters(data):
    asked = [m["content"] for e in drawn(data) for m in e.messages if m["role"] == "user"]
    words = {"order", "reverse", "first", "last", "same", "times", "twice", "repeat", "sort", "spell", "each", "every"}
    about_letters = [set(question.split()) for question in asked if "etters" in question]
    assert len(about_letters) > 1000
    assert not [question for question in about_letters if question & words]


def test_sums_are_right_about_as_often_as_said(data):
    right = total = 0
    for example in islice(data.examples(5, {"sum": 1.0}), 4000):
        question, reply = example.messages[-2:]
        digits = [int(c) for c in question["content"] if c.isdigit()]
        if len(digits) == 2 and reply["content"].isdigit():
            total += 1
            right += int(reply["content"]) == sum(digits)
    # A random label is right now and then, too: at most 1 in 19.
    assert abs(right / total - (data.RIGHT_SUMS + (1 - data.RIGHT_SUMS) / 19)) < 0.03
