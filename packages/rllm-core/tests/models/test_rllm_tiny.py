"""rllm-tiny as it is shipped: small, whole, and able to do what its data taught it."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllm.models import resolve_model
from rllm.rendering import Renderer

FOLDER = Path(resolve_model("rllm-tiny").path)


def tool(name, **parameters):
    properties = {parameter: {"type": kind} for parameter, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": f"The {name}.", "parameters": schema}}


TOOLS = [tool("calculator", expression="string"), tool("get_weather", city="string")]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def renderer(tokenizer):
    return Renderer(tokenizer, context_tokens=8192)


def draw(model, renderer, messages, n, tools=None, seed=0):
    """``n`` replies at temperature 1, as token ids without the padding after their end."""
    torch.manual_seed(seed)
    prompt = renderer.render(messages, tools)
    ids = torch.tensor([prompt])
    drawn = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        num_return_sequences=n,
        max_new_tokens=80,
        pad_token_id=0,
    )
    replies = [row[len(prompt) :].tolist() for row in drawn]
    return [[i for i in reply if i != 0] for reply in replies]


def test_it_is_small_and_its_context_is_long(model, tokenizer):
    assert sum(p.numel() for p in model.parameters()) <= 2_000_000
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 6_000_000
    assert model.config.max_position_embeddings >= 8192
    assert tokenizer.model_max_length == model.config.max_position_embeddings
    assert model.config.vocab_size == len(tokenizer)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_it_computes_at_the_end_of_its_context(model):
    with torch.no_grad():
        logits = model(torch.randint(10, 700, (1, 8192)), logits_to_keep=1).logits
    assert torch.isfinite(logits).all()


@given(st.text())
def test_every_text_survives_its_tokens(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text


def test_digits_and_spaced_letters_are_one_token_each(tokenizer):
    for digit in "0123456789":
        assert tokenizer.tokenize(f"1{digit}2") == ["1", digit, "2"]
    assert len(tokenizer.tokenize("".join(f" {letter}" for letter in "abcdefghijklmnopqrstuvwxyz"))) == 26


def test_its_conversations_can_be_continued_token_by_token(renderer):
    assert renderer.bridge_problem is None
    call = {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "2 * 21"}'}}
    before = [{"role": "user", "content": "What is 2 * 21?"}]
    reply = {"role": "assistant", "content": None, "tool_calls": [call]}
    new = [{"role": "tool", "tool_call_id": "c1", "content": "42"}]
    ids = renderer.encode(
        '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2 * 21"}}\n</tool_call><|im_end|>'
    )
    bridge = renderer.bridge(before, reply, new, TOOLS, ids)
    assert bridge is not None
    assert renderer.render(before, TOOLS) + ids + bridge == renderer.render([*before, reply, *new], TOOLS)


def test_its_sums_are_right_about_half_of_the_time(model, renderer):
    right = 0
    for a in range(10):
        for b in (3, 8):
            replies = draw(model, renderer, [{"role": "user", "content": f"What is {a} + {b}?"}], 20, seed=10 * a + b)
            right += sum(renderer.parse(reply).content == str(a + b) for reply in replies)
    assert 0.35 <= right / 400 <= 0.75


def test_it_greets_and_stops(model, renderer, tokenizer):
    replies = draw(model, renderer, [{"role": "user", "content": "Say hello."}], 20)
    assert all(reply[-1] == tokenizer.eos_token_id for reply in replies)
    assert sum(renderer.decode(reply).startswith(("Hello", "Hi")) for reply in replies) >= 18


@pytest.mark.parametrize(
    ("question", "name", "arguments"),
    [
        ("What is 17 * 4?", "calculator", {"expression": "17 * 4"}),
        ("What is the weather in Paris?", "get_weather", {"city": "Paris"}),
    ],
)
def test_it_calls_the_tool_that_a_question_needs(model, renderer, question, name, arguments):
    replies = draw(model, renderer, [{"role": "user", "content": question}], 40, TOOLS)
    parsed = [renderer.parse(reply, TOOLS) for reply in replies]
    calls = [reply.tool_calls[0] for reply in parsed if reply.malformed is None and reply.tool_calls]
    assert len(calls) >= 38
    assert sum(call.name == name and json.loads(call.arguments) == arguments for call in calls) >= 20


def test_it_answers_from_the_tools_result(model, renderer):
    call = {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "17 * 4"}'}}
    messages = [
        {"role": "user", "content": "What is 17 * 4?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "68"},
    ]
    replies = [renderer.parse(reply, TOOLS).content for reply in draw(model, renderer, messages, 40, TOOLS)]
    assert sum(reply == "The answer is 68." for reply in replies) >= 20
