"""A stream that is continued by bridges is the conversation that the template renders whole."""

from functools import cache

import pytest
from conversations import TOOLS, calling, natural_text, said, turns, user
from hypothesis import given, settings
from hypothesis import strategies as st
from template_families import FAMILIES, tokenizer

from rllm.rendering import Renderer

BRIDGED = ["chatml", "qwen25", "qwen25 of a base model", "hermes with special markers", "qwen3", "qwen3 coder",
           "llama3", "gemma"]  # fmt: skip
WITH_TOOLS = ["qwen25", "hermes with special markers", "qwen3", "qwen3 coder"]


@cache
def renderer(family: str) -> Renderer:
    return Renderer(tokenizer(family), context_tokens=100_000)


@pytest.mark.parametrize("family", [*BRIDGED, "deepseek", "mistral"])
def test_the_known_families_can_be_continued(family):
    made = renderer(family)
    assert made.bridgeable
    assert made.bridge_problem is None


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("very forgetful", "stands before a reply otherwise"),
        ("reminding", "stands before a reply otherwise"),
        ("llama2", "no special token ends a reply, but ' </s>"),
        ("plain", "no special token ends a reply"),
        ("short", "no special token ends a reply, but ''"),
        ("deaf", "leaves out messages of the role 'assistant'"),
    ],
)
def test_a_template_that_can_not_be_continued_says_why(family, why):
    made = renderer(family)
    assert not made.bridgeable
    assert why in made.bridge_problem
    assert made.bridge([user("a")], {"role": "assistant", "content": "b"}, [user("c")], None, []) is None
    assert made.why_no_bridge([user("a")], {"role": "assistant", "content": "b"}, [], None) == made.bridge_problem


def test_a_template_that_moves_the_tools_is_continued_only_without_them():
    made = renderer("mistral")
    assert "stands before a reply otherwise" in made.tool_bridge_problem
    reply, new = {"role": "assistant", "content": "b"}, [user("c")]
    assert made.bridge([user("a")], reply, new, None, []) is not None
    assert made.bridge([user("a")], reply, new, TOOLS, []) is None


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("fickle", "no special token ends a turn that calls tools"),
        ("fickle base model", "ends a turn that calls tools otherwise once something follows it"),
    ],
)
def test_a_template_whose_calls_end_in_two_ways_is_continued_only_after_text(family, why):
    made = renderer(family)
    assert made.bridgeable
    assert why in made.tool_bridge_problem
    reply = calling(("add", {"n": 1}))
    result = {"role": "tool", "tool_call_id": "call00000", "content": "2"}
    assert made.bridge([user("a")], reply, [result], TOOLS, []) is None
    assert made.bridge([user("a")], {"role": "assistant", "content": "b"}, [user("c")], TOOLS, []) is not None


def test_a_template_that_forgets_is_continued_until_it_does():
    made = renderer("forgetful")
    messages, reply = [user("0")], {"role": "assistant", "content": "a"}
    for n in range(2):
        assert made.bridge(messages, reply, [user("b")], None, []) is not None, n
        messages = [*messages, reply, user("b")]
    assert made.bridge(messages, reply, [user("b")], None, []) is None
    assert "otherwise" in made.why_no_bridge(messages, reply, [user("b")], None)


def continued(family, first, made, tools):
    """The stream of a conversation whose replies are sampled as the template would write them."""
    render = renderer(family)
    end = FAMILIES[family].end_of_turn
    messages, stream = [first], render.render([first], tools)
    for reply, new in made:
        text = natural_text(render.tokenizer, messages, reply, tools, end)
        sampled = [*render.encode(text), render.end_of_turn]
        bridge = render.bridge(messages, reply, new, tools, sampled)
        assert bridge is not None, render.why_no_bridge(messages, reply, new, tools)
        stream = [*stream, *sampled, *bridge]
        messages = [*messages, reply, *new]
    return stream, render.render(messages, tools)


@pytest.mark.parametrize("family", BRIDGED)
@settings(max_examples=25, deadline=None)
@given(conversation=turns(tools=False))
def test_natural_replies_and_bridges_are_what_the_template_renders_whole(family, conversation):
    stream, whole = continued(family, *conversation, None)
    assert stream == whole


@pytest.mark.parametrize("family", WITH_TOOLS)
@settings(max_examples=25, deadline=None)
@given(conversation=turns(tools=True))
def test_so_are_conversations_with_tool_calls_and_their_results(family, conversation):
    stream, whole = continued(family, *conversation, TOOLS)
    assert stream == whole


@settings(max_examples=25, deadline=None)
@given(conversation=turns(tools=True, most_calls=1))
def test_so_are_those_of_a_template_that_takes_one_call_a_turn(conversation):
    stream, whole = continued("llama3", *conversation, TOOLS)
    assert stream == whole


@pytest.mark.parametrize("family", BRIDGED)
@settings(max_examples=25, deadline=None)
@given(text=said, cut=st.integers(0, 40))
def test_a_truncated_reply_keeps_its_ids_and_is_closed_first(family, text, cut):
    made = renderer(family)
    ask, reply, new = [user("one")], {"role": "assistant", "content": text}, [user("two")]
    sampled = [*made.encode(text), made.end_of_turn]
    closed = made.bridge(ask, reply, new, None, sampled)
    # The reply as the agent has it may end in the middle of a character; what it says plays no part.
    kept = sampled[:-1][:cut]
    other = {"role": "assistant", "content": made.decode(kept)}
    assert made.bridge(ask, other, new, None, kept) == [made.end_of_turn, *closed]


def test_a_call_that_was_cut_within_is_text_and_is_closed_like_text():
    made = renderer("qwen25")
    sampled = made.encode('<tool_call>\n{"name": "add", "argum')
    reply = made.parse(sampled, TOOLS)
    assert reply.tool_calls == ()
    message = {"role": "assistant", "content": reply.content}
    assert made.bridge([user("a")], message, [user("b")], TOOLS, sampled) == made.encode(
        "<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
    )


def test_what_was_sampled_beyond_the_end_of_the_turn_is_not_written_twice():
    made = renderer("chatml")
    ask, reply, new = [user("a")], {"role": "assistant", "content": "b"}, [user("c")]
    beyond = made.encode("b<|im_end|>\n")
    rest = made.bridge(ask, reply, new, None, beyond)
    assert [*beyond, *rest] == made.encode("b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n")
    # But new messages are never taken from what the model made up.
    invented = made.encode("b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n")
    assert made.bridge(ask, reply, new, None, invented) == made.encode(
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_reply_ended_by_another_stop_token_is_closed_as_the_template_does():
    made = renderer("qwen25 of a base model")
    end = made.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    assert set(made.stop_ids) == {end, made.end_of_turn}
    bridge = made.bridge(
        [user("a")], {"role": "assistant", "content": "b"}, [user("c")], None, [*made.encode("b"), end]
    )
    assert bridge == made.encode("<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n")


def test_the_separator_behind_the_end_of_a_turn_is_kept_at_tool_turns():
    # verl#6501, #6921: the line break that follows <|im_end|> was lost there.
    made = renderer("qwen25")
    reply = calling(("add", {"n": 1}))
    results = [{"role": "tool", "tool_call_id": "call00000", "content": "2"}]
    bridge = made.bridge([user("a")], reply, results, TOOLS, [made.end_of_turn])
    assert made.tokenizer.decode(bridge).startswith("\n<|im_start|>user\n<tool_response>\n2\n</tool_response>")


def test_reasoning_that_the_template_drops_from_older_turns_stays_in_the_stream():
    made = renderer("qwen3")
    sampled = [*made.encode("<think>\nlong thoughts\n</think>\n\nshort"), made.end_of_turn]
    parsed = made.parse(sampled)
    reply = {"role": "assistant", "content": parsed.content, "reasoning_content": parsed.reasoning}
    bridge = made.bridge([user("one")], reply, [user("two")], None, sampled)
    stream = made.tokenizer.decode([*made.render([user("one")]), *sampled, *bridge])
    assert stream.count("long thoughts") == 1
    assert stream.endswith("short<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n")
    rendered = made.tokenizer.decode(made.render([user("one"), reply, user("two")]))
    assert "long thoughts" not in rendered
    assert rendered == stream.replace("<think>\nlong thoughts\n</think>\n\n", "")


def test_a_chain_of_tool_calls_with_reasoning_goes_on_when_the_next_question_would_drop_it():
    made = renderer("qwen3")
    reasoned = {**calling(("add", {"n": 1})), "reasoning_content": "I should add."}
    result = {"role": "tool", "tool_call_id": "call00000", "content": "2"}
    messages = [user("one"), reasoned, result]
    bridge = made.bridge(messages, {"role": "assistant", "content": "two"}, [user("more")], TOOLS, [made.end_of_turn])
    assert made.tokenizer.decode(bridge) == "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"


def test_a_header_that_opens_reasoning_is_part_of_the_prompt_and_of_each_bridge():
    made = renderer("deepseek")
    sampled = [*made.encode("hm\n</think>\n\nyes"), made.end_of_turn]
    bridge = made.bridge([user("one")], {"role": "assistant", "content": "yes"}, [user("two")], None, sampled)
    stream = made.tokenizer.decode([*made.render([user("one")]), *sampled, *bridge])
    assert stream == (
        "<｜begin▁of▁sentence｜><｜User｜>one<｜Assistant｜><think>\nhm\n</think>\n\nyes<｜end▁of▁sentence｜>"
        "<｜User｜>two<｜Assistant｜><think>\n"
    )


def test_a_conversation_that_holds_the_probes_own_marker_is_continued_all_the_same():
    made = renderer("chatml")
    text = "Zq7rllm7qZ Zq7rllm7qZ7"
    bridge = made.bridge([user(text)], {"role": "assistant", "content": text}, [user(text)], None, [made.end_of_turn])
    assert made.tokenizer.decode(bridge) == f"\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def test_messages_that_the_template_refuses_are_no_bridge_and_say_why():
    made = renderer("gemma")
    reply = {"role": "assistant", "content": "b"}
    assert made.bridge([user("a")], reply, [{"role": "assistant", "content": "c"}], None, []) is None
    assert "must alternate" in made.why_no_bridge([user("a")], reply, [{"role": "assistant", "content": "c"}], None)
