"""Rendering and bridging over the template families: a stream continued is the conversation rendered whole."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from template_families import FAMILIES, tokenizer

from rllm.errors import TemplateError
from rllm.rendering import Renderer, TextStream, token_strings

BRIDGED = ["chatml", "qwen3", "llama3", "gemma", "deepseek"]


@cache
def renderer(family: str) -> Renderer:
    return Renderer(tokenizer(family), context_tokens=4096)


@pytest.mark.parametrize("family", BRIDGED)
def test_the_known_families_can_be_continued(family):
    assert renderer(family).bridge_problem is None


@pytest.mark.parametrize(("family", "why"), [("forgetful", "earlier turn"), ("plain", "no special token")])
def test_a_template_that_can_not_be_continued_says_why(family, why):
    made = renderer(family)
    assert why in made.bridge_problem
    assert made.bridge([{"role": "user", "content": "a"}], {"role": "assistant", "content": "b"}, [], None, []) is None


@pytest.mark.parametrize("family", BRIDGED)
def test_sampling_stops_at_the_end_of_the_turn_and_of_the_text(family):
    made = renderer(family)
    names = made.tokenizer.convert_ids_to_tokens(list(made.stop_ids))
    assert FAMILIES[family][2] in names
    assert made.end_of_turn in made.stop_ids


plain = st.text("abcdefgh ijk0123456789éü🙂.,!?", min_size=1, max_size=20).map(str.strip).filter(bool)


@pytest.mark.parametrize("family", BRIDGED)
@settings(max_examples=40, deadline=None)
@given(turns=st.lists(st.tuples(plain, plain), min_size=1, max_size=5))
def test_natural_replies_and_bridges_are_what_the_template_renders_whole(family, turns):
    made = renderer(family)
    messages = [{"role": "user", "content": turns[0][0]}]
    stream = made.render(messages)
    for n, (_, said) in enumerate(turns):
        sampled = [*made.encode(said), made.end_of_turn]
        reply = {"role": "assistant", "content": said}
        new = [{"role": "user", "content": turns[(n + 1) % len(turns)][0]}]
        bridge = made.bridge(messages, reply, new, None, sampled)
        assert bridge is not None
        stream = [*stream, *sampled, *bridge]
        messages = [*messages, reply, *new]
    assert stream == made.render(messages)


@pytest.mark.parametrize("family", BRIDGED)
def test_a_truncated_reply_is_closed_first(family):
    made = renderer(family)
    ask = [{"role": "user", "content": "one"}]
    reply, new = {"role": "assistant", "content": "cut off"}, [{"role": "user", "content": "two"}]
    sampled = made.encode("cut off")
    whole = [*made.render(ask), *sampled, *made.bridge(ask, reply, new, None, sampled)]
    assert whole == made.render([*ask, reply, *new])


def test_reasoning_that_the_template_would_drop_stays_in_the_stream():
    made = renderer("qwen3")
    ask = [{"role": "user", "content": "one"}]
    said = "<think>\nlong thoughts\n</think>\n\nshort"
    sampled = [*made.encode(said), made.end_of_turn]
    new = [{"role": "user", "content": "two"}]
    bridge = made.bridge(ask, {"role": "assistant", "content": said}, new, None, sampled)
    stream = [*made.render(ask), *sampled, *bridge]
    assert "long thoughts" in made.tokenizer.decode(stream)
    assert "long thoughts" not in made.tokenizer.decode(
        made.render([*ask, {"role": "assistant", "content": said}, *new])
    )


TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def test_a_tool_call_and_its_result_are_bridged_as_the_template_renders_them():
    made = renderer("chatml")
    ask = [{"role": "user", "content": "sum"}]
    said = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    reply = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = [{"role": "tool", "tool_call_id": "c1", "content": "2"}]
    sampled = [*made.encode(said), made.end_of_turn]
    stream = [*made.render(ask, [TOOL]), *sampled, *made.bridge(ask, reply, result, [TOOL], sampled)]
    assert stream == made.render([*ask, reply, *result], [TOOL])


def test_what_the_template_renders_as_a_tool_call_parses_back():
    for family in ("chatml", "llama3"):
        made = renderer(family)
        call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": "x y", "b": [1, 2]}}}
        messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        rendered = made.render(messages)
        header = made.render(messages[:1])
        end = rendered.index(made.end_of_turn, len(header))
        (parsed,) = made.parse(rendered[len(header) : end + 1], [TOOL]).tool_calls
        assert (parsed.name, parsed.arguments) == ("add", '{"a": "x y", "b": [1, 2]}')


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([{"role": "system", "content": "x"}, {"role": "user", "content": "y"}], "System role not supported"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "image_url"),
    ],
)
def test_what_a_template_can_not_render_is_said_in_its_own_words(messages, why):
    with pytest.raises(TemplateError, match=why):
        renderer("gemma").render(messages)


def test_a_tokenizer_without_a_template_says_what_to_do():
    bare = tokenizer("chatml")
    bare.chat_template = None
    with pytest.raises(TemplateError, match=r"has no chat template.*instruct"):
        Renderer(bare, context_tokens=10)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30))
def test_a_text_stream_joins_to_the_whole_text_and_never_breaks_a_character(text):
    made = tokenizer("chatml")
    ids = made(text, add_special_tokens=False)["input_ids"]
    stream = TextStream(made)
    pieces = [stream.push(i) for i in ids]
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert all("\N{REPLACEMENT CHARACTER}" not in p for p in pieces)
    assert "".join(pieces) + stream.flush() == made.decode(ids)
    assert b"".join(raw for _, raw in token_strings(made, ids)).decode() == text
