"""What counts as the same conversation, what as an edit of it and what as a new one; and raw prompts that go on."""

import dataclasses
import json

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm.gateway.conversation import Conversations, Node, outline_of
from rllm.gateway.keys import CallKey, prompt_digest
from rllm.gateway.prefixes import PrefixIndex
from rllm.trace import Span, prompt_ids, steps_by_key, stream_ids
from rllm.trace.routing import call_headers

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2, {"c": 3}]}}\n</tool_call><|im_end|>'


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


@pytest.fixture
def session(bench):
    return bench.open(max_tokens=200)


@pytest.fixture
def client(session):
    with openai.OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as client:
        yield client


def ask(client, *messages, **fields):
    return client.chat.completions.create(model="m", messages=list(messages), **fields)


# -- chat


def _as_is(message):
    return message.model_dump()


def _keys_turned(message):
    call = message.model_dump()["tool_calls"][0]
    turned = {"name": "add", "arguments": json.dumps({"b": [2, {"c": 3}], "a": 1}, indent=1)}
    return {"role": "assistant", "tool_calls": [{**call, "function": turned}]}


def _as_empty_text(message):
    return message.model_dump(exclude_none=True) | {"content": "", "name": "solver", "refusal": None, "annotations": []}


def _as_no_parts(message):
    return message.model_dump(exclude_none=True) | {"content": [], "function_call": None, "audio": None}


@pytest.mark.parametrize("echo", [_as_is, _keys_turned, _as_empty_text, _as_no_parts])
@pytest.mark.parametrize("new_id", [None, "toolu_01"])
def test_a_tool_call_that_comes_back_in_another_form_goes_on_exactly(bench, session, client, echo, new_id):
    bench.sampler.script = [CALL]
    first = ask(client, user("go"), tools=TOOLS).choices[0].message
    sent = echo(first)
    call_id = new_id or first.tool_calls[0].id
    sent["tool_calls"] = [{**call, "id": call_id} for call in sent["tool_calls"]]
    ask(client, user("go"), sent, {"role": "tool", "tool_call_id": call_id, "content": "3"}, tools=TOOLS)
    one, two = bench.steps(session)
    assert (two.parent, two.break_reason) == (one.key, None)
    assert bench.sampler.asked[1][0][: len(one.added_ids) + len(one.completion_ids)] == stream_ids(one, {})


def test_call_ids_that_a_framework_makes_anew_for_every_request_do_not_matter(bench, session, client):
    messages = [user("go")]
    for turn in range(3):
        bench.sampler.script = [CALL]
        message = ask(client, *messages, tools=TOOLS).choices[0].message.model_dump(exclude_none=True)
        messages += [message, {"role": "tool", "tool_call_id": "", "content": str(turn)}]
        for k, (called, result) in enumerate(zip(messages[1::2], messages[2::2], strict=True)):
            called["tool_calls"][0]["id"] = result["tool_call_id"] = f"request {turn} call {k}"
    steps = bench.steps(session)
    assert [s.parent for s in steps] == [None, steps[0].key, steps[1].key]
    # Two results that change places are another conversation, whatever the ids are.
    messages[2]["tool_call_id"], messages[4]["tool_call_id"] = messages[4]["tool_call_id"], messages[2]["tool_call_id"]
    ask(client, *messages, tools=TOOLS)
    assert bench.steps(session)[3].parent == steps[0].key


@pytest.mark.parametrize(("said", "sent"), [("  a reply \n", "a reply"), ("", None), ("x\n", "x")])
def test_whitespace_around_a_reply_does_not_matter(bench, session, client, said, sent):
    bench.sampler.script = [said + "<|im_end|>"]
    ask(client, user("go"))
    ask(client, user("go"), assistant(sent), user("on"))
    one, two = bench.steps(session)
    assert two.parent == one.key


def test_of_choices_that_said_the_same_the_one_whose_call_ids_come_back_goes_on(bench, session, client):
    bench.sampler.script = [CALL, CALL, CALL]
    choices = ask(client, user("go"), tools=TOOLS, n=3).choices
    ids = [choice.message.tool_calls[0].id for choice in choices]
    assert len(set(ids)) == 3
    for k in (2, 0, 1):
        result = {"role": "tool", "tool_call_id": ids[k], "content": str(k)}
        ask(client, user("go"), choices[k].message.model_dump(exclude_none=True), result, tools=TOOLS)
    steps = bench.steps(session)
    assert [s.parent for s in steps[3:]] == [steps[2].key, steps[0].key, steps[1].key]


S, U, A = system("S"), user("one"), assistant("first")
NEW = {
    "the same question again": [S, U],
    "another question": [S, user("else")],
    "another question after an example": [S, user("ex"), assistant("ample"), user("else")],
    "a fork": [S, U, A, user("instead")],
}
EDITED = {
    "the reply is rewritten": [S, U, assistant("other"), user("two")],
    "the reply is dropped": [S, U, user("two")],
    "a late reply is rewritten": [S, U, A, user("two"), assistant("other"), user("three")],
    "the beginning is dropped": [S, user("two"), assistant("second"), user("three")],
    "the question is rewritten": [S, user("ONE"), A, user("two"), assistant("second"), user("three")],
    "the system prompt is another each turn": [system("T"), U, A, user("two"), assistant("second"), user("three")],
    "something is put in between": [S, user("context"), U],
}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [*((m, None) for m in NEW.values()), *((m, "edited history") for m in EDITED.values())],
    ids=[*NEW, *EDITED],
)
def test_an_edit_is_told_from_a_new_conversation(bench, session, client, messages, reason):
    bench.sampler.script = ["first<|im_end|>", "second<|im_end|>"]
    ask(client, S, U)
    ask(client, S, U, A, user("two"))
    ask(client, *messages)
    steps = bench.steps(session)
    assert [s.break_reason for s in steps] == [None, None, reason]
    prompt = prompt_ids(steps[2], steps_by_key(steps))
    assert prompt == bench.sampler.asked[2][0]
    assert bench.renderer.decode(prompt) == bench.renderer.decode(bench.renderer.render(messages))


def test_examples_shared_by_questions_are_no_edit(bench, session, client):
    example = [S, user("ex"), assistant("ample")]
    ask(client, *example, U)
    ask(client, *example, user("two"))
    assert [s.break_reason for s in bench.steps(session)] == [None, None]


def test_another_role_shares_a_stream_and_breaks_nothing(bench, session, client):
    bench.sampler.script = ["first<|im_end|>"]
    headers = {role: call_headers(session, Span(id=role, role=role)) for role in ("solver", "checker")}
    ask(client, S, U, extra_headers=headers["solver"])
    ask(client, S, U, A, user("check"), extra_headers=headers["checker"])
    ask(client, S, user("else"), assistant("other"), user("two"), extra_headers=headers["checker"])
    one, two, three = bench.steps(session)
    assert [s.role for s in (one, two, three)] == ["solver", "checker", "checker"]
    assert (two.parent, two.break_reason) == (one.key, None)
    assert (three.parent, three.break_reason) == (None, None)


def test_of_spans_that_said_the_same_each_goes_on_with_its_own(bench, session, client):
    headers = [call_headers(session, Span(id=f"span {k}", role="solver")) for k in range(3)]
    for header in headers:
        ask(client, U, extra_headers=header)
    for header in reversed(headers):
        ask(client, U, assistant("fine"), user("on"), extra_headers=header)
    steps = bench.steps(session)
    assert [s.parent for s in steps[3:]] == [steps[2].key, steps[1].key, steps[0].key]


def test_a_template_that_can_not_be_continued_is_rendered_anew_and_counted(bench, session, client, monkeypatch):
    monkeypatch.setattr(bench.renderer, "bridge", lambda *_: None)
    bench.sampler.script = ["first<|im_end|>"]
    ask(client, S, U)
    ask(client, S, U, A, user("two"))
    two = bench.steps(session)[1]
    assert (two.parent, two.break_reason) == (None, "template")
    assert list(two.added_ids) == bench.renderer.render([S, U, A, user("two")])
    assert len(two.added_messages) == 4


def test_a_session_grows_linearly_with_its_turns(bench, session, client):
    messages = [S]
    for turn in range(12):
        messages.append(user(f"question {turn}"))
        messages.append(ask(client, *messages).choices[0].message.model_dump(exclude_none=True))
    steps = bench.steps(session)
    assert [len(s.added_messages) for s in steps] == [2] + [1] * 11
    assert sum(len(s.added_ids) + len(s.completion_ids) for s in steps) == len(
        stream_ids(steps[-1], steps_by_key(steps))
    )


messages_ = st.lists(
    st.tuples(st.sampled_from(["user", "assistant", "system"]), st.sampled_from(["a", "b", ""])), min_size=1, max_size=6
).map(lambda pairs: [{"role": role, "content": text} for role, text in pairs])


@given(st.lists(messages_, min_size=1, max_size=8), messages_)
def test_the_longest_conversation_that_is_extended_is_found(recorded, asked):
    conversations = Conversations()
    for k, messages in enumerate(recorded):
        outline = outline_of(messages, [])
        node = Node(str(k), "policy", "main", None, None, outline.messages, (), outline.tools, (), ())
        conversations.add(node, outline)
    fitting = [m for m in recorded if len(m) < len(asked) and asked[: len(m)] == m]
    match = conversations.find(outline_of(asked, []), route="policy", role="main", span_id=None)
    if not fitting:
        assert match.node is None
    else:
        assert match.n_shared == max(map(len, fitting))
        assert recorded[int(match.node.key)] == asked[: match.n_shared]
    elsewhere = conversations.find(outline_of(asked, []), route="judge", role="main", span_id=None)
    assert (elsewhere.node, elsewhere.break_reason) == (None, None)


# -- raw prompts


def test_a_text_prompt_that_repeats_prompt_and_completion_goes_on_exactly(bench, session, client):
    bench.sampler.script = ["cut in the mid", "two<|im_end|>", "three<|im_end|>"]
    first = "Question: 1\nAnswer:"
    client.completions.create(model="m", prompt=first)
    client.completions.create(model="m", prompt=f"{first}cut in the middle\nQuestion: 2\nAnswer:")
    # The end of the turn was sampled: it is in the stream, so the prompt must have it.
    client.completions.create(model="m", prompt=f"{first}cut in the middle\nQuestion: 2\nAnswer:two<|im_end|>\nmore")
    steps = bench.steps(session)
    assert [s.parent for s in steps] == [None, steps[0].key, steps[1].key]
    assert [s.break_reason for s in steps] == [None] * 3
    for step, (prompt, _) in zip(steps, bench.sampler.asked, strict=True):
        assert prompt_ids(step, steps_by_key(steps)) == prompt
    assert bench.renderer.decode(bench.sampler.asked[1][0]) == f"{first}cut in the middle\nQuestion: 2\nAnswer:"


def test_a_text_prompt_with_an_edited_completion_is_encoded_anew_and_counted(bench, session, client):
    bench.sampler.script = ["one"]
    client.completions.create(model="m", prompt="Q:")
    client.completions.create(model="m", prompt="Q:two, rather")
    client.completions.create(model="m", prompt="Another")
    steps = bench.steps(session)
    assert [(s.parent, s.break_reason) for s in steps] == [(None, None), (None, "edited history"), (None, None)]


def test_ids_go_on_with_the_stream_of_a_chat_call_and_of_the_longest(bench, session, client):
    bench.sampler.script = ["one<|im_end|>", "two<|im_end|>"]
    reply = ask(client, U)
    ids = [*reply.prompt_token_ids, *reply.choices[0].token_ids]
    client.completions.create(model="m", prompt=[*ids, 9, 8])
    longer = [*ids, 9, 8, *bench.steps(session)[1].completion_ids]
    client.completions.create(model="m", prompt=[*longer, 7])
    client.completions.create(model="m", prompt=longer[:-1])
    steps = bench.steps(session)
    assert [s.parent for s in steps] == [None, steps[0].key, steps[1].key, steps[0].key]
    assert [len(s.added_ids) for s in steps[1:]] == [2, 1, len(longer) - 1 - len(ids)]


@given(st.lists(st.binary(max_size=5), max_size=12), st.binary(max_size=8))
def test_the_prefix_index_finds_what_a_search_through_all_finds(recorded, asked):
    index: PrefixIndex[int] = PrefixIndex()
    for k, data in enumerate(recorded):
        index.add(data, k)
    fitting = [data for data in recorded if len(data) < len(asked) and asked.startswith(data)]
    longest = max(fitting, key=len, default=None)
    assert index.longest(asked) == (None if longest is None else (len(longest), recorded.index(longest)))


# -- keys


def test_tool_call_ids_and_seeds_are_the_same_in_every_run_and_differ_within_one(make_bench):
    runs = []
    for _ in range(2):
        bench = make_bench()
        session = bench.open()
        with openai.OpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            bench.sampler.script = [CALL] * 6
            for _ in range(2):
                ask(client, user("go"), tools=TOOLS, n=3)
        steps = bench.steps(session)
        runs.append(([s.message["tool_calls"][0]["id"] for s in steps], [s.sampling.seed for s in steps]))
    assert runs[0] == runs[1]
    ids, seeds = runs[0]
    assert len(set(ids)) == 6
    assert all(len(i) == 9 and i.isalnum() for i in ids)  # the only form that Mistral's templates take
    assert len(set(seeds)) == 2


@given(st.lists(st.integers(0, 10**5), max_size=5), st.integers(0, 3), st.integers(0, 3))
def test_every_part_of_a_calls_key_enters_its_seed(ids, sample, occurrence):
    key = CallKey(1, "p", "t", sample, "r", prompt_digest(ids), occurrence)
    others = [
        dataclasses.replace(key, run_seed=2),
        dataclasses.replace(key, phase="p/1"),
        dataclasses.replace(key, task_id="u"),
        dataclasses.replace(key, sample=9),
        dataclasses.replace(key, role="s"),
        dataclasses.replace(key, prompt=prompt_digest([*ids, 1])),
        dataclasses.replace(key, occurrence=9),
    ]
    seeds = {k.seed() for k in (key, *others)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)
