"""What a completion says: replies, reasoning, tool calls in each form, and calls that are none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm.rendering.parsing import ToolCall, parse_reply, tool_format

SPECIAL = ("<|im_start|>", "<|im_end|>")


def hermes(text):
    return parse_reply(text, SPECIAL, "hermes")


def test_text_is_text_and_control_tokens_are_no_part_of_it():
    assert parse_reply("hello<|im_start|> you", SPECIAL, None).content == "hello you"


def test_reasoning_is_split_off():
    reply = parse_reply("<think>\nhm\n</think>\n\nyes", SPECIAL, None)
    assert (reply.reasoning, reply.content) == ("hm", "yes")
    assert parse_reply("hm\n</think>yes", SPECIAL, None).reasoning == "hm"  # the template opened it
    assert parse_reply("<think>still", SPECIAL, None).content == ""


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6), lambda v: st.lists(v, max_size=2)
)


@given(st.lists(st.tuples(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.dictionaries(st.text(max_size=4), values)),
                min_size=1, max_size=3))  # fmt: skip
def test_every_well_formed_call_is_found_with_its_arguments(calls):
    body = "\n".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>" for name, arguments in calls
    )
    reply = hermes("thinking aloud " + body)
    assert [(c.name, json.loads(c.arguments)) for c in reply.tool_calls] == calls
    assert reply.malformed is None
    assert reply.content == "thinking aloud"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', "not closed"),
        ('<tool_call>{"name": "f", "arguments": {"a": </tool_call>', "no JSON"),
        ('<tool_call>{"arguments": {}}</tool_call>', '"name"'),
        ('<tool_call>{"name": "f", "arguments": "a"}</tool_call>', "no object"),
        ("<tool_call>[1]</tool_call>", '"name"'),
    ],
)
def test_a_malformed_call_stays_text_and_says_why(text, why):
    reply = hermes(text)
    assert reply.tool_calls == ()
    assert why in reply.malformed
    assert reply.content == text


def test_one_malformed_call_makes_none_of_them_count():
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name"</tool_call>'
    reply = hermes(text)
    assert (reply.tool_calls, reply.content) == ((), text)


def test_function_tags_give_parameters_as_json_or_text():
    first, second = "<parameter=a>\n3\n</parameter>", "<parameter=b>\nx y\n</parameter>"
    text = f"<tool_call>\n<function=add>\n{first}\n{second}\n</function>\n</tool_call>"
    (call,) = parse_reply(text, SPECIAL, "function_tags").tool_calls
    assert call == ToolCall("add", '{"a": 3, "b": "x y"}')
    assert (
        parse_reply("<function=add><parameter=a>3", SPECIAL, "function_tags").malformed == "a tool call is not closed"
    )


def test_llama_json_is_the_whole_reply():
    (call,) = parse_reply('<|python_tag|>{"name": "f", "parameters": {"q": "x"}}', SPECIAL, "llama_json").tool_calls
    assert call == ToolCall("f", '{"q": "x"}')
    assert parse_reply("see {this}", SPECIAL, "llama_json").tool_calls == ()
    assert parse_reply('{"name": "f", "param', SPECIAL, "llama_json").malformed is not None


def test_parsing_keeps_no_state_between_samples():
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert hermes(text) == hermes(text)


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("x <tool_call> y", "hermes"),
        ("<function=n>", "function_tags"),
        ("<|python_tag|>", "llama_json"),
        ("", "hermes"),
    ],
)
def test_the_form_is_told_from_the_template(template, form):
    assert tool_format(template) == form
