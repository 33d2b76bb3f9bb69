"""The real openai client against the gateway: every feature it serves, streamed and not, sync and async."""

import openai
import pytest

from rllm.trace import prompt_ids, steps_by_key

ASK = [{"role": "user", "content": "What is 2 + 2?"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    }
]


@pytest.fixture
def session(bench):
    return bench.open(is_training=False)


@pytest.fixture
def client(session):
    with openai.OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as client:
        yield client


def test_a_chat_completion_says_what_was_sampled_and_carries_its_ids(bench, session, client):
    bench.sampler.script = ["the answer is 4<|im_end|>"]
    raw = client.chat.completions.with_raw_response.create(model="policy", messages=ASK)
    reply = raw.parse()
    (step,) = bench.steps(session)
    assert reply.choices[0].message.content == "the answer is 4"
    assert reply.choices[0].finish_reason == "stop"
    assert step.completion_ids[-1] == bench.renderer.stop_ids[0]
    assert reply.choices[0].model_extra["token_ids"] == list(step.completion_ids)
    assert reply.model_extra["prompt_token_ids"] == list(bench.renderer.render(ASK, None))
    assert step.logprobs == pytest.approx([-i / 1000 for i in step.completion_ids])
    assert reply.usage.completion_tokens == len(step.completion_ids)
    ids = {reply.id, raw.headers["x-request-id"], raw.headers["x-rllm-call-id"], step.call_id}
    assert len(ids) == 1
    assert reply.system_fingerprint == f"rllm:{step.call_id}"


def test_a_stream_joined_is_the_unstreamed_answer(bench, client):
    text = "a fairly long answer, with an émoji 🙂 and more than one piece of stream"
    bench.sampler.script = [text + "<|im_end|>"] * 2
    whole = client.chat.completions.create(model="policy", messages=ASK)
    chunks = list(
        client.chat.completions.create(
            model="policy", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert whole.choices[0].message.content == text
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage == whole.usage
    assert all(c.usage is None for c in chunks[:-1])


async def test_the_async_client_is_served_likewise(bench, session):
    bench.sampler.script = ["yes<|im_end|>"]
    async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
        stream = await client.chat.completions.create(model="policy", messages=ASK, stream=True)
        parts = [c.choices[0].delta.content or "" async for c in stream]
    assert "".join(parts) == "yes"


def test_each_of_n_choices_is_a_step_of_one_call(bench, session, client):
    bench.sampler.script = ["one<|im_end|>", "two<|im_end|>", "three<|im_end|>"]
    reply = client.chat.completions.create(model="policy", messages=ASK, n=3)
    steps = bench.steps(session)
    assert [c.message.content for c in reply.choices] == ["one", "two", "three"]
    assert {s.call_id for s in steps} == {reply.id}
    assert [s.choice for s in steps] == [0, 1, 2]


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call><|im_end|>'


def test_a_tool_call_comes_back_as_one_whole_and_streamed(bench, client):
    bench.sampler.script = [CALL, CALL]
    reply = client.chat.completions.create(model="policy", messages=ASK, tools=TOOLS)
    (call,) = reply.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("add", '{"a": 2}')
    assert reply.choices[0].finish_reason == "tool_calls"
    with client.chat.completions.stream(model="policy", messages=ASK, tools=TOOLS) as stream:
        final = stream.get_final_completion()
    (streamed,) = final.choices[0].message.tool_calls
    assert streamed.function.arguments == '{"a": 2}'
    assert streamed.id != call.id  # ids are unique within a session
    assert final.choices[0].finish_reason == "tool_calls"


def test_a_tool_call_without_tools_on_offer_is_text(bench, client):
    bench.sampler.script = [CALL, CALL]
    assert client.chat.completions.create(model="policy", messages=ASK).choices[0].message.tool_calls is None
    none = client.chat.completions.create(model="policy", messages=ASK, tools=TOOLS, tool_choice="none")
    assert "add" in none.choices[0].message.content


def test_a_malformed_tool_call_is_given_back_as_text_and_counted(bench, session, client):
    for said in (
        '<tool_call>{"name": "add", "argum',
        '<tool_call>{"name": "add", "arguments": {"a": "\\ud83d"}}</tool_call>',
    ):
        bench.sampler.script = [said + "<|im_end|>"]
        message = client.chat.completions.create(model="policy", messages=ASK, tools=TOOLS).choices[0].message
        assert message.tool_calls is None
        assert message.content == said
    assert bench.gateway.session_state(session.id).malformed_tool_calls == 2
    assert ["malformed tool call" in s.error for s in bench.steps(session)] == [True, True]


def test_logprobs_are_the_samplers_and_their_bytes_spell_the_text(bench, client):
    bench.sampler.script = ["ünï🙂<|im_end|>"]
    reply = client.chat.completions.create(model="policy", messages=ASK, logprobs=True, top_logprobs=2)
    content = reply.choices[0].logprobs.content
    spelt = b"".join(bytes(t.bytes) for t in content).decode()
    assert spelt == reply.choices[0].message.content == "ünï🙂"
    assert (content[-1].token, content[-1].bytes) == ("<|im_end|>", [])  # a control token is no text
    ids = reply.choices[0].model_extra["token_ids"]
    assert [t.logprob for t in content] == pytest.approx([-i / 1000 for i in ids])
    assert all(len(t.top_logprobs) == 2 for t in content)


def test_text_ends_just_before_a_stop_string_and_its_ids_stay(bench, session, client):
    bench.sampler.script = ["one STOP", "one STOP"]
    reply = client.chat.completions.create(model="policy", messages=ASK, stop="STOP")
    streamed = client.chat.completions.create(model="policy", messages=ASK, stop=["STOP"], stream=True)
    assert reply.choices[0].message.content == "one "
    assert "".join(c.choices[0].delta.content or "" for c in streamed) == "one "
    assert bench.renderer.decode(bench.steps(session)[0].completion_ids) == "one STOP"
    assert bench.sampler.asked[0][1].stop == ("STOP",)


def test_a_raw_completion_takes_text_or_ids_and_continues_an_exact_stream(bench, session, client):
    bench.sampler.script = ["first<|im_end|>", "second<|im_end|>"]
    first = client.completions.create(model="policy", prompt="Say it:", logprobs=1)
    assert first.choices[0].text == "first"
    ids = first.model_extra["prompt_token_ids"] + first.choices[0].model_extra["token_ids"]
    client.completions.create(model="policy", prompt=[*ids, 5, 6])
    one, two = bench.steps(session)
    assert (two.parent, two.added_ids) == (one.key, (5, 6))
    assert prompt_ids(two, steps_by_key([one, two])) == [*ids, 5, 6]


def test_the_models_are_listed(client):
    assert [m.id for m in client.models.list()] == ["policy", "scripted"]
    assert client.models.retrieve("any/name").id == "any/name"


def test_evaluation_takes_the_requests_sampling_and_training_the_runs(bench):
    for is_training in (False, True):
        session = bench.open(is_training=is_training)
        with openai.OpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            client.chat.completions.create(
                model="policy", messages=ASK, temperature=0.25, top_p=0.5, seed=3, presence_penalty=1.0
            )
        params = bench.sampler.asked[-1][1]
        (step,) = bench.steps(session)
        if is_training:
            assert params.is_full_softmax
            assert set(step.overridden) == {"temperature", "top_p", "seed", "presence_penalty"}
        else:
            assert (params.temperature, params.top_p, params.seed, params.presence_penalty) == (0.25, 0.5, 3, 1.0)
            assert step.overridden == ()


def test_seeds_come_from_what_a_call_is_and_never_from_its_arrival(make_bench):
    seeds = []
    for order in ((0, 1), (1, 0)):
        bench = make_bench()
        by_sample = {}
        for sample in order:
            session = bench.open(sample=sample)
            with openai.OpenAI(base_url=session.base_url, api_key=session.api_key) as client:
                for _ in range(2):
                    client.chat.completions.create(model="policy", messages=ASK)
            by_sample[sample] = [s.sampling.seed for s in bench.steps(session)]
        seeds.append(by_sample)
    assert seeds[0] == seeds[1]
    assert len({s for pair in seeds[0].values() for s in pair}) == 4  # asked twice it draws twice
