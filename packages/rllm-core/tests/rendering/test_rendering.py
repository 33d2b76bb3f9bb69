"""Messages to a prompt's ids: as the template writes them, or a message that says what it can't write."""

from functools import cache

import pytest
from conversations import TOOLS, calling, user
from template_families import FAMILIES, tokenizer

from rllm.errors import ContextLengthError, TemplateError
from rllm.rendering import Renderer


@cache
def renderer(family: str) -> Renderer:
    return Renderer(tokenizer(family), context_tokens=4096)


@pytest.mark.parametrize("family", ["chatml", "qwen3", "llama3", "gemma", "deepseek", "mistral"])
def test_a_prompt_is_what_transformers_makes_of_it(family):
    messages = [user("one ünï 🙂"), {"role": "assistant", "content": "two"}, user("three")]
    theirs = tokenizer(family).apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert renderer(family).render(messages) == theirs


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_sampling_stops_at_the_end_of_a_turn_and_of_a_text(family):
    made = renderer(family)
    names = made.tokenizer.convert_ids_to_tokens(list(made.stop_ids))
    expected = {FAMILIES[family].eos}
    if made.end_of_turn is not None:
        expected.add(FAMILIES[family].end_of_turn)
    assert set(names) == expected


def test_text_parts_are_joined_and_others_are_refused_by_name():
    made = renderer("chatml")
    parts = {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}
    assert made.render([parts]) == made.render([user("a b")])
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    with pytest.raises(TemplateError, match=r"message 1 \(role 'user'\).*'image_url'"):
        made.render([user("a"), image])
    with pytest.raises(TemplateError, match="its content is a int"):
        made.render([{"role": "user", "content": 5}])


def test_fields_without_a_value_are_as_if_absent_and_developer_is_system():
    made = renderer("llama3")
    dumped = {"role": "assistant", "content": "b", "tool_calls": None, "refusal": None, "function_call": None}
    assert made.render([user("a"), dumped, user("c")]) == made.render(
        [user("a"), {"role": "assistant", "content": "b"}, user("c")]
    )
    assert made.render([{"role": "developer", "content": "s"}, user("a")]) == made.render(
        [{"role": "system", "content": "s"}, user("a")]
    )


@pytest.mark.parametrize(
    ("family", "written"),
    [
        ("qwen25", '"arguments": {"text": "ü \\"q\\"", "n": 2}'),
        ("qwen3 coder", '<parameter=text>\nü "q"\n</parameter>\n<parameter=n>\n2\n</parameter>'),
        ("llama3", '"parameters": {"text": "ü \\"q\\"", "n": 2}'),
        ("deepseek", '```json\n{"text": "ü \\"q\\"", "n": 2}\n```'),
    ],
)
@pytest.mark.parametrize("as_text", [True, False])
def test_tool_arguments_reach_each_template_in_the_form_it_wants(family, written, as_text):
    made = renderer(family)
    turn = calling(("add", {"text": 'ü "q"', "n": 2}))
    if not as_text:
        turn["tool_calls"][0]["function"]["arguments"] = {"text": 'ü "q"', "n": 2}
    result = {"role": "tool", "tool_call_id": "call00000", "content": "2"}
    text = made.tokenizer.decode(made.render([user("a"), turn, result]))
    assert written in text


def test_arguments_that_are_no_json_are_refused_where_an_object_is_needed():
    turn = calling(("add", {}))
    turn["tool_calls"][0]["function"]["arguments"] = "{half"
    with pytest.raises(TemplateError, match=r"message 1 .*arguments of its call of 'add' are no JSON"):
        renderer("qwen25").render([user("a"), turn])
    assert renderer("deepseek").render([user("a"), turn])  # takes text as it is
    with pytest.raises(TemplateError, match="no function with a name"):
        renderer("qwen25").render([user("a"), {"role": "assistant", "tool_calls": [{"type": "custom"}]}])


@pytest.mark.parametrize(
    ("family", "messages", "why"),
    [
        ("gemma", [{"role": "system", "content": "x"}, user("y")], "System role not supported"),
        ("gemma", [user("x"), user("y")], "roles must alternate"),
        ("llama3", [user("x"), calling(("add", {}), ("add", {}))], "single tool-calls"),
        ("chatml", [user("x"), calling(("add", {}))], "leaves out the tool calls"),
        ("chatml", [user("x"), {"role": "tool", "content": "1"}], "leaves out messages of the role 'tool'"),
        ("qwen25", [user("x"), {"role": "critic", "content": "1"}], "leaves out messages of the role 'critic'"),
        ("chatml", [], "empty conversation"),
    ],
)
def test_what_a_template_can_not_render_is_said(family, messages, why):
    with pytest.raises(TemplateError, match=why):
        renderer(family).render(messages)


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("chatml", "leaves out the tools"),
        ("half tools", "leaves out the tool calls"),
        ("mistral", "none of the forms that are read"),
    ],
)
def test_tools_that_the_model_would_not_see_or_could_not_call_are_refused(family, why):
    made = renderer(family)
    assert why in made.tools_problem
    with pytest.raises(TemplateError, match=why):
        made.render([user("a")], TOOLS)
    assert made.render([user("a")], []) == made.render([user("a")])


def test_a_tokenizer_without_a_template_says_what_to_do():
    bare = type(tokenizer("chatml"))(tokenizer_object=tokenizer("chatml").backend_tokenizer)
    assert bare.chat_template is None
    with pytest.raises(TemplateError, match=r"has no chat template.*instruct"):
        Renderer(bare, context_tokens=10)


def test_a_template_by_name_for_tools_is_used_when_tools_are_offered():
    many = type(tokenizer("chatml"))(tokenizer_object=tokenizer("qwen25").backend_tokenizer, eos_token="<|im_end|>")
    many.chat_template = {"default": FAMILIES["chatml"].template, "tool_use": FAMILIES["qwen25"].template}
    made = Renderer(many, context_tokens=4096)
    assert "# Tools" in many.decode(made.render([user("a")], TOOLS))
    assert "# Tools" not in many.decode(made.render([user("a")]))


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers():
    made = Renderer(tokenizer("chatml"), context_tokens=20)
    with pytest.raises(ContextLengthError, match=r"has \d+ tokens and the model's context is 20"):
        made.render([user("word " * 30)])
