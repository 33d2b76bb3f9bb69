"""What a completion's ids say: replies, reasoning, tool calls in each form, and calls that are none."""

import json
from functools import cache

import pytest
from conversations import TOOLS, arguments, calling, calls, natural_text, said, user
from hypothesis import given, settings
from hypothesis import strategies as st
from template_families import FAMILIES, tokenizer

from rllm.rendering import Renderer, ToolCall


@cache
def renderer(family: str) -> Renderer:
    return Renderer(tokenizer(family), context_tokens=100_000)


def parse(family, text, tools=TOOLS):
    made = renderer(family)
    return made.parse([*made.encode(text), made.end_of_turn], tools)


# --- what templates write is read back --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("qwen25", "hermes"),
        ("hermes with special markers", "hermes"),
        ("qwen3", "hermes"),
        ("qwen3 coder", "function_tags"),
        ("llama3", "llama_json"),
        ("mistral", None),
        ("chatml", None),
    ],
)
def test_the_form_of_tool_calls_is_the_one_the_template_writes(family, form):
    assert renderer(family).tool_form == form


@pytest.mark.parametrize("family", ["qwen25", "hermes with special markers", "qwen3", "qwen3 coder"])
@settings(max_examples=50, deadline=None)
@given(made=st.lists(calls, min_size=1, max_size=3), content=st.none() | said)
def test_calls_that_the_template_writes_are_read_back_as_they_were(family, made, content):
    render = renderer(family)
    turn = calling(*made, content=content)
    text = natural_text(render.tokenizer, [user("a")], turn, TOOLS, FAMILIES[family].end_of_turn)
    reply = render.parse([*render.encode(text), render.end_of_turn], TOOLS)
    assert reply.malformed is None
    assert [(c.name, json.loads(c.arguments)) for c in reply.tool_calls] == made
    assert reply.content == content


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from(["add", "look_up"]), given_arguments=arguments, tagged=st.booleans())
def test_llamas_json_is_read_back_also_behind_its_tag(name, given_arguments, tagged):
    render = renderer("llama3")
    turn = calling((name, given_arguments))
    text = natural_text(render.tokenizer, [user("a")], turn, TOOLS, "<|eot_id|>")
    end = render.tokenizer.convert_tokens_to_ids("<|eom_id|>") if tagged else render.end_of_turn
    reply = render.parse([*render.encode("<|python_tag|>" * tagged + text), end], TOOLS)
    assert [(c.name, json.loads(c.arguments)) for c in reply.tool_calls] == [(name, given_arguments)]
    assert (reply.content, reply.malformed) == (None, None)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=30), family=st.sampled_from(["chatml", "qwen25", "llama3", "qwen3 coder"]))
def test_a_reply_without_calls_is_its_text_character_for_character(text, family):
    made = renderer(family)
    ids = [i for i in made.encode(text) if i not in made.stop_ids]
    reply = made.parse([*ids, made.end_of_turn], TOOLS)
    if reply.malformed is None and not reply.tool_calls:
        assert reply.content == made.decode(ids)


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 399), max_size=30), family=st.sampled_from(sorted(FAMILIES)))
def test_whatever_is_sampled_has_a_reading_and_the_same_each_time(ids, family):
    made = renderer(family)
    ids = [i for i in ids if i < len(made.tokenizer)]
    reply = made.parse(ids, TOOLS)
    assert made.parse(ids, TOOLS) == reply  # no state: each of n samples is read as if it were the only one
    assert made.parse(ids).content is not None


# --- reasoning --------------------------------------------------------------------------------------------------


def test_reasoning_is_split_off_where_the_template_knows_it():
    reply = parse("qwen3", "<think>\nhm\n</think>\n\nyes")
    assert (reply.reasoning, reply.content) == ("hm", "yes")
    reply = parse("qwen3", '<think>\nhm\n</think>\n\nyes\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>')
    assert (reply.reasoning, reply.content, len(reply.tool_calls)) == ("hm", "yes", 1)
    reply = parse("qwen3", "<think>\n\n</think>\n\nyes")
    assert (reply.reasoning, reply.content) == (None, "yes")
    assert parse("qwen3", "an answer that names </think> in passing").reasoning is None


def test_reasoning_that_was_cut_off_leaves_an_empty_reply():
    reply = parse("qwen3", "<think>\nstill at it")
    assert (reply.reasoning, reply.content) == ("still at it", "")


def test_a_call_within_reasoning_is_no_call():
    reply = parse("qwen3", '<think>I could <tool_call>{"name": "add", "arguments": {}}</tool_call></think>no')
    assert (reply.tool_calls, reply.content) == ((), "no")


def test_reasoning_that_the_header_opened_ends_at_its_close():
    assert parse("deepseek", "hm\n</think>\n\nyes").reasoning == "hm"
    assert parse("deepseek", "<think>\nhm\n</think>\n\nyes").reasoning == "hm"
    assert parse("deepseek", "hm, still").content == ""


def test_a_template_without_reasoning_leaves_the_tags_in_the_text():
    text = "<think>hm</think><answer>yes</answer>"
    assert parse("chatml", text).content == text


# --- calls that are none ----------------------------------------------------------------------------------------

GOOD = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', "not closed"),
        ('<tool_call>{"name": "f", "arguments": {"a": </tool_call>', "no JSON"),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}} </tool_call', "not closed"),
        ('<tool_call>{"name": "f", "arguments": {}}, {}</tool_call>', "something else follows"),
        ('<tool_call>{"arguments": {}}</tool_call>', 'no "name"'),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', 'no "name"'),
        ('<tool_call>{"name": "f"}</tool_call>', "no object"),
        ('<tool_call>{"name": "f", "arguments": "a"}</tool_call>', "no object"),
        ('<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "NaN is no JSON"),
        ('<tool_call>{"name": "f", "arguments": {"a": 1, "a": 2}}</tool_call>', "a key twice"),
        ('<tool_call>{"name": "f", "arguments": {"a": "\\ud83d"}}</tool_call>', "half a character"),
        ('<tool_call>{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>", "no JSON"),
        ("<tool_call>" + "[" * 5000 + "</tool_call>", "no JSON"),
        ('<tool_call>{"name": "f", "arguments": ' + '{"a":' * 5000 + "1" + "}" * 5001 + "</tool_call>", "deeply"),
        ("<tool_call>[1]</tool_call>", "no object"),
        ("<tool_call></tool_call>", "no JSON"),
        ('{"name": "f", "arguments": {}}</tool_call>', "never opened"),
        (GOOD + '<tool_call>{"name"</tool_call>', "no JSON"),
    ],
    ids=range(18),
)
@pytest.mark.parametrize("family", ["qwen25", "hermes with special markers"])
def test_a_malformed_call_stays_text_and_says_why(family, text, why):
    reply = parse(family, text)
    assert reply.tool_calls == ()
    assert why in reply.malformed
    # Where the markers are special tokens they are no text, like any other of them.
    markers = ("<tool_call>", "</tool_call>") if family != "qwen25" else ()
    assert reply.content == "".join(text.split(markers[0])).replace(markers[1], "") if markers else text


def test_the_reason_quotes_the_call_but_not_all_of_a_long_one():
    reply = parse("qwen25", "<tool_call>{" + "x" * 1000)
    assert "<tool_call>{xxx" in reply.malformed
    assert "characters)" in reply.malformed
    assert len(reply.malformed) < 300


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"name": "f", "param', "no JSON"),
        ('{"type": "function", "name": "f", ', "no JSON"),
        ('{"name": "f", "parameters": [1]}', "no object"),
        ('{"name": "f", "parameters": {}} and so on', "something else follows"),
        ('<|python_tag|>search.call(query="x")', "no JSON"),
        ('<|python_tag|>{"name": "f"}', "no object"),
        ('{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "one tool call a turn"),
    ],
)
def test_a_malformed_call_in_llamas_json_says_why(text, why):
    reply = parse("llama3", text)
    assert why in reply.malformed
    assert (reply.tool_calls, reply.content) == ((), text.removeprefix("<|python_tag|>"))


@pytest.mark.parametrize("text", ["see {this}", '{"answer": 3}', '{"name": "Ada", "born": 1815}', "{}", "[1]", "{"])
def test_an_answer_in_json_is_no_call(text):
    reply = parse("llama3", text)
    assert (reply.tool_calls, reply.content, reply.malformed) == ((), text, None)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("<function=add>\n<parameter=n>\n3\n</parameter>\n", "not whole"),
        ("<function=add>\n<parameter=n>\n3\n</function>", "no parameter"),
        ("<function=add>\n<parameter=n>\nthree\n</parameter>\n</function>", "of type integer and no JSON"),
        ("<function=add>\n<parameter=n>\n3 4\n</parameter>\n</function>", "something else follows"),
        ("<function=add><parameter=n>3</parameter><parameter=n>4</parameter></function>", "twice"),
        ("<function=add>\nn = 3\n</function>", "no parameter"),
        ('<function=add>{"n": </function>', "no JSON"),
        ('<function=add>{"n": 3} x</function>', "something else follows"),
        ("<tool_call>\n</tool_call>", "not whole"),
        ("</function>", "not whole"),
    ],
)
def test_malformed_function_tags_say_why(body, why):
    reply = parse("qwen3 coder", body)
    assert why in reply.malformed
    assert (reply.tool_calls, reply.content) == ((), body)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<parameter=text>3</parameter>", {"text": "3"}),
        ("<parameter=n>3</parameter>", {"n": 3}),
        ("<parameter=on>True</parameter>", {"on": True}),
        ("<parameter=on>false</parameter>", {"on": False}),
        ('<parameter=options>\n{"a": [1]}\n</parameter>', {"options": {"a": [1]}}),
        ("<parameter=text>\n\n two\nlines \n\n</parameter>", {"text": "\n two\nlines \n"}),
        ("<parameter=unknown>3</parameter>", {"unknown": "3"}),
        ('{"n": 3}', {"n": 3}),
        ("", {}),
    ],
)
def test_a_parameter_is_of_the_type_that_the_tools_schema_says(body, expected):
    (call,) = parse("qwen3 coder", f"<tool_call>\n<function=add>\n{body}\n</function>\n</tool_call>").tool_calls
    assert call.name == "add"
    assert json.loads(call.arguments) == expected


def test_a_parameter_may_be_null_where_its_schema_allows_it():
    schema = {
        "properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "s": {"type": ["string", "null"]}}
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    text = "<function=f><parameter=n>None</parameter><parameter=s>null</parameter></function>"
    assert parse("qwen3 coder", text, tools).tool_calls == (ToolCall("f", '{"n": null, "s": null}'),)


# --- when calls are looked for ----------------------------------------------------------------------------------


def test_a_call_is_text_where_no_tools_were_offered():
    for tools in (None, []):
        reply = parse("qwen25", GOOD, tools)
        assert (reply.content, reply.tool_calls, reply.malformed) == (GOOD, (), None)


def test_a_call_in_another_models_form_is_text():
    assert parse("llama3", GOOD).content == GOOD
    assert parse("qwen25", '{"name": "add", "parameters": {}}').tool_calls == ()


def test_text_in_which_a_string_names_the_markers_is_one_call():
    text = '<tool_call>{"name": "add", "arguments": {"text": "a </tool_call> b"}}</tool_call>'
    assert parse("qwen25", text).tool_calls == (ToolCall("add", '{"text": "a </tool_call> b"}'),)


def test_control_tokens_are_no_part_of_a_reply_but_their_spelling_in_text_is():
    made = renderer("chatml")
    spelt = [i for c in "<|im_end|>" for i in made.encode(c)]
    ids = [*made.encode("a<|im_start|>"), *spelt, *made.encode("<|endoftext|>b<|im_end|>")]
    assert made.parse(ids).content == "a<|im_end|>b"
