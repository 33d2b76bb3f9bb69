"""Sessions as rollouts use them: who may call, what a budget is, closing, holding, and agents left as they are."""

import asyncio
import contextlib
import json
import threading
import time

import openai
import pytest

from rllm.errors import SessionError
from rllm.gateway import Gateway
from rllm.gateway.turnstile import Turnstile
from rllm.trace import as_role, assemble, carry_context, instrument_openai, rollouts_running, use_session

ASK = [{"role": "user", "content": "hi"}]
BODY = {"model": "m", "messages": ASK}


def client_of(session, **fields):
    fields = {"base_url": session.base_url, "api_key": session.api_key, "max_retries": 0, **fields}
    return openai.OpenAI(**fields)


def call(bench, *, path="/v1/chat/completions", **headers):
    """By header or key alone, without a client's help."""
    import http.client

    connection = http.client.HTTPConnection(bench.gateway.url.removeprefix("http://"), timeout=20)
    try:
        connection.request("POST", path, json.dumps(BODY), {k.replace("_", "-"): v for k, v in headers.items()})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read()), {k.lower(): v for k, v in reply.getheaders()}
    finally:
        connection.close()


# -- access


def test_the_url_is_the_authority_over_headers_and_over_keys_that_are_nobodys(bench):
    mine, other = bench.open(), bench.open()
    path = f"/sessions/{mine.id}/v1/chat/completions"
    for headers in ({}, {"authorization": "Bearer sk-anything"}, {"x_rllm_session_id": other.id}):
        assert call(bench, path=path, **headers)[0] == 200
    assert len(bench.steps(mine)) == 3
    assert bench.steps(other) == []


def test_a_header_or_a_key_names_the_session_where_the_url_does_not(bench):
    mine, other = bench.open(), bench.open()
    assert call(bench, x_rllm_session_id=mine.id)[0] == 200
    assert call(bench, authorization=f"Bearer {mine.api_key}")[0] == 200
    assert len(bench.steps(mine)) == 2
    refused = [
        ({}, 401, "no_session"),
        ({"authorization": "Bearer sk-1"}, 401, "no_session"),
        ({"authorization": f"Bearer rllm-{mine.id}"}, 401, "invalid_api_key"),
        ({"authorization": f"Bearer {mine.api_key}x"}, 401, "invalid_api_key"),
        ({"authorization": f"Bearer {mine.api_key}", "x_rllm_session_id": other.id}, 403, "wrong_key"),
        ({"authorization": "Bearer rllm-none-xyz"}, 404, "unknown_session"),
        ({"x_rllm_session_id": "none"}, 404, "unknown_session"),
        ({"authorization": "Bearer rllm-"}, 401, "no_session"),
    ]
    for headers, status, code in refused:
        got, body, sent = call(bench, **headers)
        assert (got, body["error"]["code"]) == (status, code), headers
        assert sent["x-should-retry"] == "false"
    assert len(bench.steps(mine)) == 2
    assert bench.steps(other) == []


def test_what_is_not_served_is_said_in_the_same_form(bench):
    session = bench.open()
    with client_of(session) as client:
        with pytest.raises(openai.NotFoundError, match=r"doesn't serve POST .*/embeddings"):
            client.embeddings.create(model="m", input="x")
        with pytest.raises(openai.NotFoundError, match="doesn't serve GET"):
            client.get("/chat/completions", cast_to=object)


# -- budgets


def test_calls_in_flight_count_against_the_budget_and_refused_ones_do_not(bench):
    session = bench.open(max_calls=3)
    statuses: list[int] = []

    def one(n):
        with client_of(session) as client, contextlib.suppress(openai.APIStatusError):
            statuses.append(client.chat.completions.with_raw_response.create(model="m", messages=ASK).status_code)

    bench.sampler.delay_s = 0.2
    threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 3
    state = bench.gateway.session_state(session.id)
    assert (state.calls, state.completed_calls, state.limit_hit) == (3, 3, "call_limit")
    assert len(bench.sampler.asked) == 3


def test_no_call_samples_more_than_what_is_left_of_the_rollouts_tokens(bench):
    bench.sampler.default = "a b c d e f g h i j k l m n o p"
    session = bench.open(max_tokens_total=11)
    with client_of(session) as client:
        first = client.chat.completions.create(model="m", messages=ASK, max_tokens=4)
        second = client.chat.completions.create(model="m", messages=ASK, n=2)
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "more"}], max_tokens=1)
        with pytest.raises(openai.PermissionDeniedError) as caught:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "and more"}])
    assert caught.value.code == "token_limit"
    assert (first.usage.completion_tokens, second.usage.completion_tokens) == (4, 6)
    assert bench.gateway.session_state(session.id).sampled_tokens == 11
    assert all(s.finish_reason == "length" for s in bench.steps(session))


def test_a_bad_request_is_no_call(bench):
    session = bench.open(max_calls=1)
    with client_of(session) as client:
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="m", messages=ASK, n=0)
        client.chat.completions.create(model="m", messages=ASK)
    assert [s.index for s in bench.steps(session)] == [0]


def test_in_training_a_longer_limit_is_cut_to_the_runs_and_said(bench):
    for is_training, expected in ((True, 5), (False, 60)):
        session = bench.open(is_training=is_training, max_tokens=5)
        with client_of(session) as client:
            client.chat.completions.create(model="m", messages=ASK, max_tokens=60)
            client.chat.completions.create(model="m", messages=ASK, max_completion_tokens=2, seed=4)
        one, two = bench.steps(session)
        assert (one.sampling.max_tokens, two.sampling.max_tokens) == (expected, 2)
        assert one.overridden == (("max_tokens",) if is_training else ())
        assert two.overridden == (("seed",) if is_training else ())
        assert (two.sampling.seed == 4) == (not is_training)


# -- closing


def test_closing_twice_gives_the_same_and_the_state_stays(bench):
    session = bench.open()
    with client_of(session) as client:
        client.chat.completions.create(model="m", messages=ASK)
    first = bench.gateway.close_session(session.id)
    assert bench.gateway.close_session(session.id) == first
    state = bench.gateway.session_state(session.id)
    assert (state.is_closed, state.completed_calls) == (True, 1)
    for use in (bench.gateway.close_session, bench.gateway.session_state):
        with pytest.raises(SessionError, match="no session 'x'"):
            use("x")


async def test_a_call_that_waits_for_new_weights_is_ended_with_its_session(bench):
    session = bench.open()
    async with bench.gateway.hold():
        waiting = asyncio.create_task(asyncio.to_thread(call, bench, authorization=f"Bearer {session.api_key}"))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        assert await asyncio.to_thread(bench.gateway.close_session, session.id) == []
        assert (await waiting)[0] == 410
    assert bench.sampler.asked == []


def test_stopping_ends_what_is_in_flight_and_a_stopped_gateway_says_so(make_bench):
    bench = make_bench()
    session = bench.open()
    bench.sampler.delay_s = 30
    caught: list[BaseException] = []

    def ask():
        with client_of(session) as client:
            try:
                client.chat.completions.create(model="m", messages=ASK)
            except openai.OpenAIError as error:
                caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while not bench.sampler.asked:
        time.sleep(0.01)
    bench.gateway.stop()
    bench.gateway.stop()
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert len(caught) == 1
    assert [s.status for s in bench.steps(session)] == ["cancelled"]
    with pytest.raises(SessionError, match="does not run"):
        bench.open()


def test_a_gateway_that_was_not_started_says_so(bench):
    fresh = Gateway(store=bench.store, policy=None, plugins=bench.gateway.plugins)  # type: ignore[arg-type]
    with pytest.raises(SessionError, match=r"start\(\) it first"):
        fresh.close_session("x")


# -- holding


async def test_a_hold_that_is_cancelled_while_it_waits_lets_calls_through_again(bench):
    session = bench.open()
    bench.sampler.delay_s = 0.5
    slow = asyncio.create_task(asyncio.to_thread(call, bench, authorization=f"Bearer {session.api_key}"))
    while not bench.sampler.asked:
        await asyncio.sleep(0.01)

    async def hold():
        async with bench.gateway.hold():
            pytest.fail("a call was in flight")

    holding = asyncio.create_task(hold())
    await asyncio.sleep(0.1)
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    bench.sampler.delay_s = 0.0
    status, _, _ = await asyncio.to_thread(call, bench, authorization=f"Bearer {session.api_key}")
    assert (status, (await slow)[0]) == (200, 200)


async def test_a_call_that_is_cancelled_twice_is_not_counted_as_inside():
    turnstile = Turnstile()

    async def pass_through():
        async with turnstile.passage():
            await asyncio.sleep(60)

    calls = [asyncio.create_task(pass_through()) for _ in range(3)]
    await asyncio.sleep(0)
    turnstile.hold()
    for task in calls:
        task.cancel()
        task.cancel()
    await asyncio.wait_for(turnstile.emptied(), 5)
    late = asyncio.create_task(pass_through())
    await asyncio.sleep(0.01)
    await asyncio.wait_for(turnstile.emptied(), 5)  # nobody got in
    turnstile.release()
    await asyncio.sleep(0.01)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(turnstile.emptied(), 0.05)
    for task in (*calls, late):
        task.cancel()
    await asyncio.gather(*calls, late, return_exceptions=True)


# -- agents left as they are


def test_an_agent_with_its_own_client_threads_and_roles_is_recorded_as_it_ran(bench):
    bench.sampler.default = "fine<|im_end|>"
    agents = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="sk-real", max_retries=0)
    sessions = [bench.open(sample=k) for k in range(4)]
    instrument_openai()

    def agent(session):
        with use_session(session):
            agents.chat.completions.create(model="gpt-x", messages=ASK, temperature=0)
            with as_role("checker"):
                threads = [threading.Thread(target=stream) for _ in range(2)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

    def stream():
        assert list(agents.chat.completions.create(model="gpt-x", messages=ASK, stream=True))

    with agents, rollouts_running(), carry_context():
        rollouts = [threading.Thread(target=agent, args=(session,)) for session in sessions]
        for rollout in rollouts:
            rollout.start()
        for rollout in rollouts:
            rollout.join()
    for session in sessions:
        trajectories, side = assemble(bench.gateway.close_session(session.id))
        assert [(t.role, len(t.steps)) for t in trajectories] == [("main", 1), ("checker", 2)]
        assert side == ()
        assert trajectories[0].steps[0].overridden == ("temperature",)


@pytest.fixture(autouse=True)
def _openai_as_it_was():
    from rllm.trace import uninstrument_openai

    yield
    uninstrument_openai()
