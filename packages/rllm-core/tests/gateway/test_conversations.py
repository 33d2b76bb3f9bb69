"""Token truth over many turns: the exact stream goes on, and what breaks it starts a row that is counted."""

import asyncio
import json

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rllm.gateway import ProviderUpstream
from rllm.gateway.conversation import outline_of
from rllm.trace import SIDE_CALL, Span, assemble, stream_ids
from rllm.trace.routing import call_headers
from rllm.types import Step
from rllm.update import trajectory_to_rows

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


def client_of(session):
    return openai.OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0)


def rows_of(steps: list[Step]):
    by_key = {s.key: s for s in steps}
    trajectories, _ = assemble(steps)
    return [r for t in trajectories for r in trajectory_to_rows(t, 1.0, by_key, temperature=1.0)[0]]


def talk(client, messages, reply=None, **more):
    """One turn; the reply is appended to ``messages`` as a framework would."""
    answer = client.chat.completions.create(model="policy", messages=messages, **more).choices[0].message
    messages.append(answer.model_dump(exclude_none=True))
    return answer


def test_twelve_turns_with_tools_are_one_row_of_exactly_the_sampled_ids(bench):
    session = bench.open()
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Start."}]
    with client_of(session) as client:
        for turn in range(12):
            call = f'<tool_call>\n{{"name": "add", "arguments": {{"a": {turn}}}}}\n</tool_call><|im_end|>'
            bench.sampler.script = [call if turn % 2 else f"turn {turn}<|im_end|>"]
            answer = talk(client, messages, tools=TOOLS)
            if answer.tool_calls:
                messages.append({"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": str(turn)})
            else:
                messages.append({"role": "user", "content": f"And {turn}?"})
    steps = bench.steps(session)
    (row,) = rows_of(steps)
    sampled = [i for s in steps for i in s.completion_ids]
    assert [t for t, m in zip(row.tokens, row.mask, strict=True) if m] == sampled
    assert bench.sampler.asked[-1][0] == row.tokens.tolist()[: len(bench.sampler.asked[-1][0])]
    assert all(s.break_reason is None for s in steps)


def test_an_unedited_conversation_is_what_the_template_renders(bench):
    session = bench.open()
    messages = [{"role": "user", "content": "one"}]
    with client_of(session) as client:
        for turn in range(4):
            bench.sampler.script = [f"reply {turn}<|im_end|>"]
            talk(client, messages)
            messages.append({"role": "user", "content": f"more {turn}"})
            bench.sampler.default = "end<|im_end|>"
        talk(client, messages)
    assert bench.sampler.asked[-1][0] == list(bench.renderer.render(messages[:-1], None))


def test_a_truncated_reply_is_closed_by_the_bridge(bench):
    session = bench.open()
    messages = [{"role": "user", "content": "one"}]
    with client_of(session) as client:
        bench.sampler.script = ["a reply that is cut<|im_end|>"]
        talk(client, messages, max_tokens=3)
        messages.append({"role": "user", "content": "two"})
        talk(client, messages)
    first, second = bench.steps(session)
    assert first.finish_reason == "length"
    assert second.parent == first.key
    assert second.added_ids[0] == bench.renderer.stop_ids[0]


@pytest.mark.parametrize("change", ["reply", "user", "drop"])
def test_an_edited_history_starts_a_row_and_is_counted(bench, change):
    session = bench.open()
    messages = [{"role": "user", "content": "one"}]
    with client_of(session) as client:
        talk(client, messages)
        messages.append({"role": "user", "content": "two"})
        talk(client, messages)
        messages.append({"role": "user", "content": "three"})
        if change == "reply":
            messages[1] = {"role": "assistant", "content": "something else"}
        elif change == "user":
            messages[0] = {"role": "user", "content": "ONE"}
        else:
            del messages[:2]
        talk(client, messages)
    steps = bench.steps(session)
    assert [s.break_reason for s in steps] == [None, None, "edited history"]
    assert len(rows_of(steps)) == 2


def test_a_fork_shares_its_past_and_every_token_is_a_target_once(bench):
    session = bench.open()
    messages = [{"role": "user", "content": "one"}]
    bench.sampler.script = ["shared<|im_end|>", "left<|im_end|>", "right<|im_end|>"]
    with client_of(session) as client:
        talk(client, messages)
        for side in ("a", "b"):
            talk(client, [*messages, {"role": "user", "content": side}])
    steps = bench.steps(session)
    assert steps[1].parent == steps[2].parent == steps[0].key
    rows = rows_of(steps)
    assert len(rows) == 2
    assert sum(r.n_targets for r in rows) == sum(len(s.completion_ids) for s in steps)


def test_a_continuation_follows_the_choice_that_it_repeats(bench):
    session = bench.open()
    bench.sampler.script = ["heads<|im_end|>", "tails<|im_end|>"]
    messages = [{"role": "user", "content": "flip"}]
    with client_of(session) as client:
        reply = client.chat.completions.create(model="policy", messages=messages, n=2)
        picked = reply.choices[1].message.model_dump(exclude_none=True)
        talk(client, [*messages, picked, {"role": "user", "content": "again"}])
    steps = bench.steps(session)
    assert steps[2].parent == steps[1].key


def test_other_tools_start_a_row_and_say_why(bench):
    session = bench.open()
    messages = [{"role": "user", "content": "one"}]
    with client_of(session) as client:
        talk(client, messages)
        messages.append({"role": "user", "content": "two"})
        talk(client, messages, tools=TOOLS)
    assert bench.steps(session)[1].break_reason == "tools changed"


text = st.text(st.characters(codec="utf-8", exclude_characters="<|>"), max_size=12)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.tuples(text, text), min_size=1, max_size=5))
def test_any_unedited_conversation_is_one_row(bench, turns):
    session = bench.open()
    messages = []
    with client_of(session) as client:
        for asked, said in turns:
            messages.append({"role": "user", "content": asked})
            bench.sampler.script = [said + "<|im_end|>"]
            talk(client, messages)
    steps = bench.steps(session)
    (row,) = rows_of(steps)
    assert row.tokens.tolist() == stream_ids(steps[-1], {s.key: s for s in steps})
    assert row.n_targets == sum(len(s.completion_ids) for s in steps)


def meaning(message):
    return outline_of([message], []).chain


def test_messages_that_differ_in_form_alone_are_the_same():
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a": 1, "b": 2}'}}
    turned = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"b":2,"a":1}'}}
    one = {"role": "assistant", "content": None, "tool_calls": [call]}
    two = {"role": "assistant", "content": "", "tool_calls": [turned], "refusal": None}
    assert meaning(one) == meaning(two)
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert meaning(parts) == meaning({"role": "user", "content": "ab"})
    assert meaning({"role": "user", "content": "a"}) != meaning({"role": "assistant", "content": "a"})


def test_spans_give_roles_and_calls_outside_an_adapters_spans_are_side_calls(bench):
    session = bench.open()
    headers = call_headers(session, Span(id="s1", role="plännër", is_adapter=True))
    with client_of(session) as client:
        talk(client, [{"role": "user", "content": "one"}])
        client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "two"}], extra_headers=headers
        )
        talk(client, [{"role": "user", "content": "three"}])
    steps = bench.steps(session)
    assert [(s.role, s.span_id) for s in steps] == [("main", None), ("plännër", "s1"), ("main", None)]
    assert [s.untrainable for s in steps] == [None, None, SIDE_CALL]


async def test_while_weights_change_calls_wait_and_none_mixes_versions(bench):
    session = bench.open()
    bench.sampler.delay_s = 0.2
    async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:

        async def ask(n):
            return await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": str(n)}])

        early = [asyncio.create_task(ask(n)) for n in range(4)]
        while len(bench.sampler.asked) < 4:
            await asyncio.sleep(0.01)
        async with bench.gateway.hold():
            assert all(t.done() for t in early) or len(bench.steps(session)) == 4  # drained: answered and recorded
            late = [asyncio.create_task(ask(n)) for n in range(4, 8)]
            await asyncio.sleep(0.3)
            assert len(bench.sampler.asked) == 4  # none got through
            bench.sampler.version = 1
        await asyncio.gather(*early, *late)
    versions = [set(s.versions) for s in bench.steps(session)]
    assert versions == [{0}] * 4 + [{1}] * 4


def test_a_route_goes_to_a_frozen_upstream_recorded_and_never_trained(make_bench):
    behind = make_bench()
    judge = behind.open(is_training=False)
    front = make_bench(routes={"judge": ProviderUpstream(judge.base_url, judge.api_key, "policy")})
    session = front.open()
    behind.sampler.script = ["looks right<|im_end|>"]
    with client_of(session) as client:
        reply = client.chat.completions.create(
            model="judge", messages=[{"role": "user", "content": "Is it?"}], temperature=0.1
        )
    (step,) = front.steps(session)
    assert reply.choices[0].message.content == "looks right"
    assert (step.route, step.untrainable) == ("policy", "frozen upstream") or step.untrainable == "frozen upstream"
    assert behind.sampler.asked[0][1].temperature == 0.1  # a frozen model is asked as the agent asked
    assert front.sampler.asked == []
    assert json.loads(step.model_dump_json())["completion_ids"] == []
