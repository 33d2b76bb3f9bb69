"""Calls of unmodified openai clients inside a session reach it."""

import asyncio
import concurrent.futures
import contextlib
import functools
import json
import threading
from collections.abc import Iterator

import openai
import pydantic
import pytest

from rllm.errors import SessionError
from rllm.trace import (
    Span,
    as_role,
    carry_context,
    instrument_openai,
    no_session,
    rollouts_running,
    uninstrument_openai,
    use_session,
)
from rllm.trace.session import _span

DEAD = "http://127.0.0.1:9/v1"
"""The discard port: nothing listens there."""


def _ask(client: openai.OpenAI, text: str = "hi") -> str:
    reply = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": text}])
    return reply.choices[0].message.content or ""


async def _ask_async(client: openai.AsyncOpenAI, text: str = "hi") -> str:
    reply = await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": text}])
    return reply.choices[0].message.content or ""


@pytest.fixture(params=["before", "after"])
def client(request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    """A client with another address and key, made before or after instrumentation."""
    if request.param == "after":
        instrument_openai()
    with openai.OpenAI(base_url=DEAD, api_key="sk-theirs", max_retries=2) as made:
        instrument_openai()
        yield made


def test_a_call_reaches_the_session_whatever_the_clients_age_and_address(client, gateway):
    with use_session(gateway.session("a")):
        assert _ask(client) == "re: hi"
    (seen,) = gateway.seen
    assert seen.path == "/sessions/a/v1/chat/completions"
    assert seen.headers["authorization"] == "Bearer rllm-a-key"
    assert seen.headers["x-rllm-session-id"] == "a"
    assert "x-rllm-span-id" not in seen.headers
    assert "sk-theirs" not in json.dumps(seen.headers)


async def test_an_async_call_reaches_the_session(gateway):
    client = openai.AsyncOpenAI(base_url=DEAD, api_key="sk-theirs")
    instrument_openai()
    async with client:
        with use_session(gateway.session("a")):
            assert await _ask_async(client) == "re: hi"
            stream = await client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            assert "".join([c.choices[0].delta.content or "" async for c in stream]) == "re: hi"
            assert [m.id async for m in client.models.list()] == ["policy"]
    assert {seen.path for seen in gateway.seen} == {"/sessions/a/v1/chat/completions", "/sessions/a/v1/models"}


def test_streams_parsing_and_raw_responses_go_on_as_they_are(client, gateway):
    class Answer(pydantic.BaseModel):
        answer: int

    messages = [{"role": "user", "content": "hi"}]
    chat = client.chat.completions
    with use_session(gateway.session("a")):
        chunks = list(chat.create(model="policy", messages=messages, stream=True))
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "re: hi"
        with chat.stream(model="policy", messages=messages) as stream:
            assert stream.get_final_completion().choices[0].message.content == "re: hi"
        assert chat.parse(model="policy", messages=messages, response_format=Answer).choices[
            0
        ].message.parsed == Answer(answer=7)
        raw = chat.with_raw_response.create(model="policy", messages=messages)
        assert raw.headers["x-request-id"] == "call-1"
        assert raw.parse().choices[0].message.content == "re: hi"
        with chat.with_streaming_response.create(model="policy", messages=messages) as response:
            assert json.loads(response.read())["choices"][0]["message"]["content"] == "re: hi"
        assert client.completions.create(model="policy", prompt="hi").choices[0].text == "re: hi"
        assert [model.id for model in client.models.list()] == ["policy"]
        assert _ask(client.with_options(timeout=5)) == "re: hi"
    assert all(seen.session_id == "a" for seen in gateway.seen)
    assert len(gateway.seen) == 8


def test_a_clients_retries_share_the_span(client, gateway):
    gateway.failures = 2
    with use_session(gateway.session("a")), as_role("solver") as span:
        assert _ask(client) == "re: hi"
    assert [seen.headers["x-stainless-retry-count"] for seen in gateway.seen] == ["0", "1", "2"]
    assert {seen.headers["x-rllm-span-id"] for seen in gateway.seen} == {span.id}


def test_a_call_names_its_span(client, gateway):
    with use_session(gateway.session("a")), as_role("Prüfer 2%\n") as span:
        _ask(client)
        token = _span.set(Span(id="s", role="node", is_adapter=True))
        _ask(client)
        _span.reset(token)
    first, second = (seen.headers for seen in gateway.seen)
    assert first["x-rllm-span-id"] == span.id
    assert first["x-rllm-role"] == "Pr%C3%BCfer%202%25%0A"
    assert "x-rllm-span-adapter" not in first
    assert (second["x-rllm-span-id"], second["x-rllm-role"], second["x-rllm-span-adapter"]) == ("s", "node", "1")


@pytest.mark.parametrize("spelling", ["authorization", "AUTHORIZATION", "Authorization"])
def test_the_clients_own_credentials_are_not_sent_to_the_session(gateway, spelling):
    instrument_openai()
    headers = {spelling: "Bearer sk-theirs", "api-key": "sk-theirs", "x-mine": "kept"}
    client = openai.OpenAI(base_url=DEAD, api_key="sk-theirs", default_headers=headers)
    with client, use_session(gateway.session("a")):
        _ask(client)
        client.models.list(extra_headers={spelling: "Bearer sk-theirs", "API-Key": "sk-theirs", "x-mine": "here"})
    for seen, mine in zip(gateway.seen, ["kept", "here"], strict=True):
        assert seen.headers["authorization"] == "Bearer rllm-a-key"
        assert seen.headers["x-mine"] == mine
        assert "sk-theirs" not in json.dumps(seen.headers)


def test_a_subclass_and_an_azure_client_reach_the_session(gateway):
    class Mine(openai.OpenAI):
        pass

    instrument_openai()
    azure = openai.AzureOpenAI(
        azure_endpoint="http://127.0.0.1:9", azure_deployment="gpt", api_version="2024-06-01", api_key="sk-theirs"
    )
    with Mine(base_url=DEAD, api_key="sk-theirs") as mine, azure, use_session(gateway.session("a")):
        assert _ask(mine) == _ask(azure) == "re: hi"
    assert [seen.path.partition("?")[0] for seen in gateway.seen] == ["/sessions/a/v1/chat/completions"] * 2
    assert all("sk-theirs" not in json.dumps(seen.headers) for seen in gateway.seen)


def test_a_client_without_a_key_can_be_made_and_used_inside_a_session(gateway):
    instrument_openai()
    with use_session(gateway.session("a")):
        with openai.OpenAI() as client:
            assert _ask(client) == "re: hi"
        with openai.AzureOpenAI(azure_endpoint="http://127.0.0.1:9", api_version="1") as azure:
            assert _ask(azure) == "re: hi"
    assert {seen.headers["authorization"] for seen in gateway.seen} == {"Bearer rllm-a-key"}


async def test_an_async_client_without_a_key_can_be_made_and_used_inside_a_session(gateway):
    instrument_openai()
    with use_session(gateway.session("a")):
        async with openai.AsyncOpenAI() as client:
            assert await _ask_async(client) == "re: hi"


def test_a_client_made_without_a_key_while_rollouts_run_works_in_a_later_session(gateway):
    instrument_openai()
    with rollouts_running():
        client = openai.OpenAI(base_url=DEAD)
        with use_session(gateway.session("a")):
            assert _ask(client) == "re: hi"
    with pytest.raises(SessionError, match="without an API key"):
        _ask(client)
    client.close()


def test_the_module_level_client_works_without_a_key(gateway, monkeypatch):
    monkeypatch.setattr(openai, "_client", None)
    monkeypatch.setattr(openai, "api_key", None)
    instrument_openai()
    with use_session(gateway.session("a")):
        reply = openai.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}])
        openai._client.close()
    assert reply.choices[0].message.content == "re: hi"


def test_outside_rollouts_a_client_without_a_key_is_refused_as_ever():
    instrument_openai()
    with pytest.raises(openai.OpenAIError, match="api_key"):
        openai.OpenAI()
    with rollouts_running(), no_session(), pytest.raises(openai.OpenAIError, match="api_key"):
        openai.OpenAI()


def test_a_key_that_is_given_stays_the_clients(monkeypatch):
    instrument_openai()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    with rollouts_running(), openai.OpenAI() as from_environment, openai.OpenAI(api_key="sk-given") as given:
        assert (from_environment.api_key, given.api_key) == ("sk-env", "sk-given")


def test_a_client_that_points_at_the_session_gets_the_span_and_nothing_else_changes(gateway):
    instrument_openai()
    session = gateway.session("a")
    client = openai.OpenAI(base_url=session.base_url, api_key=session.api_key)
    with client, use_session(session), as_role("solver") as span:
        assert _ask(client) == "re: hi"
    (seen,) = gateway.seen
    assert seen.path == "/sessions/a/v1/chat/completions"
    assert seen.headers["authorization"] == "Bearer rllm-a-key"
    assert seen.headers["x-rllm-span-id"] == span.id


def test_without_redirection_a_call_goes_where_its_client_sends_it(gateway, provider):
    instrument_openai()
    session = gateway.session("a", redirect=False)
    with (
        openai.OpenAI(base_url=f"{provider.url}/v1", api_key="sk-theirs") as theirs,
        openai.OpenAI(base_url=session.base_url, api_key=session.api_key) as ours,
        rollouts_running(),
        use_session(session),
        as_role("solver") as span,
    ):
        _ask(theirs)
        _ask(ours)
    (left,), (stayed,) = provider.seen, gateway.seen
    assert left.path == "/v1/chat/completions"
    assert left.headers["authorization"] == "Bearer sk-theirs"
    assert not [name for name in left.headers if name.startswith("x-rllm")]
    assert stayed.headers["x-rllm-span-id"] == span.id


def test_a_call_outside_every_session_is_refused_while_rollouts_run(provider):
    instrument_openai()
    with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="sk-theirs") as client:
        with rollouts_running():
            with pytest.raises(SessionError, match=r"belongs to no session.*no_session"):
                _ask(client)
            with pytest.raises(SessionError, match="models"):
                client.models.list()
            assert provider.seen == []
            with no_session():
                assert _ask(client) == "re: hi"
        assert _ask(client) == "re: hi"
    assert [seen.headers["authorization"] for seen in provider.seen] == ["Bearer sk-theirs"] * 2


async def test_an_async_call_outside_every_session_is_refused_while_rollouts_run(provider):
    instrument_openai()
    async with openai.AsyncOpenAI(base_url=f"{provider.url}/v1", api_key="sk-theirs") as client:
        with rollouts_running():
            with pytest.raises(SessionError, match="belongs to no session"):
                await _ask_async(client)
            with no_session():
                await _ask_async(client)
    assert len(provider.seen) == 1


def test_rollouts_run_until_the_last_one_has_ended(provider):
    instrument_openai()
    with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="sk-theirs") as client:
        with rollouts_running():
            with rollouts_running():
                pass
            with pytest.raises(SessionError):
                _ask(client)
        _ask(client)


def test_the_url_of_a_session_in_use_needs_no_context(gateway):
    instrument_openai()
    session = gateway.session("a")
    client = openai.OpenAI(base_url=session.base_url, api_key=session.api_key)
    with client, rollouts_running(), use_session(session):
        thread = threading.Thread(target=_ask, args=[client])  # its context is empty: nothing carries it here
        thread.start()
        thread.join()
    assert [seen.session_id for seen in gateway.seen] == ["a"]


def test_what_the_gateway_does_not_serve_is_refused_inside_a_session(client, gateway):
    with use_session(gateway.session("a")):
        for call in (
            lambda: client.embeddings.create(model="e", input="hi"),
            lambda: client.images.generate(prompt="hi"),
            lambda: client.audio.transcriptions.create(model="w", file=b"x"),
            lambda: client.models.delete("policy"),
            lambda: client.chat.completions.list(),
            lambda: client.post("http://127.0.0.1:9/v1/embeddings", cast_to=object, body={}),
        ):
            with pytest.raises(SessionError, match=r"doesn't serve (POST|DELETE|GET) http.*no_session"):
                call()
        client.post(
            "http://127.0.0.1:9/v1/chat/completions",
            cast_to=openai.types.chat.ChatCompletion,
            body={"model": "policy", "messages": [{"role": "user", "content": "hi"}]},
        )
    assert [seen.path for seen in gateway.seen] == ["/sessions/a/v1/chat/completions"]


VERSION = tuple(int(part) for part in openai.__version__.split(".")[:2])


@pytest.mark.parametrize(
    "connect",
    [
        pytest.param(lambda: openai.OpenAI(api_key="k").realtime.connect(model="m"), id="realtime"),
        pytest.param(lambda: openai.AsyncOpenAI(api_key="k").realtime.connect(model="m"), id="async realtime"),
        pytest.param(
            lambda: openai.OpenAI(api_key="k").responses.connect(),
            id="responses",
            marks=pytest.mark.skipif(VERSION < (2, 22), reason="openai has responses over websockets since 2.22"),
        ),
    ],
)
def test_a_websocket_is_refused_before_it_is_opened(connect, gateway):
    instrument_openai()
    with use_session(gateway.session("a")), pytest.raises(SessionError, match=r"serve WEBSOCKET.*no_session"):
        connect()
    with rollouts_running(), pytest.raises(SessionError, match=r"\.connect"):
        connect()
    with rollouts_running(), no_session():
        connect()  # makes a manager; nothing is sent until it is entered
    with use_session(gateway.session("a", redirect=False)):
        connect()
    assert gateway.seen == []


def test_instrumenting_twice_is_once_and_undoing_restores_exactly():
    classes = (openai.OpenAI, openai.AsyncOpenAI, openai.AzureOpenAI, openai.AsyncAzureOpenAI)
    before = [dict(vars(c)) for c in classes]
    instrument_openai()
    once = [dict(vars(c)) for c in classes]
    assert once != before
    instrument_openai()
    assert [dict(vars(c)) for c in classes] == once
    uninstrument_openai()
    assert [dict(vars(c)) for c in classes] == before
    uninstrument_openai()
    assert [dict(vars(c)) for c in classes] == before


def test_a_wrapper_that_somebody_put_on_top_is_left_and_ours_sleeps_below_it(gateway, provider, monkeypatch):
    calls = []

    def wrap(original):
        @functools.wraps(original)
        def request(*arguments, **keywords):
            calls.append(1)
            return original(*arguments, **keywords)

        return request

    instrument_openai()
    theirs = wrap(openai.OpenAI.request)
    monkeypatch.setattr(openai.OpenAI, "request", theirs)
    with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="sk-theirs") as client:
        uninstrument_openai()
        assert openai.OpenAI.request is theirs
        with use_session(gateway.session("a")):
            _ask(client)
            assert (len(provider.seen), len(gateway.seen)) == (1, 0)
            instrument_openai()
            assert openai.OpenAI.request is theirs
            _ask(client)
            assert (len(provider.seen), len(gateway.seen)) == (1, 1)
    assert len(calls) == 2


N = 32


def _check_own_sessions(gateway, calls_each: int) -> None:
    assert len(gateway.seen) == N * calls_each
    for seen in gateway.seen:
        assert seen.asked == f"of {seen.session_id}"
        assert seen.headers["x-rllm-session-id"] == seen.session_id
        assert seen.headers["authorization"] == f"Bearer rllm-{seen.session_id}-key"


async def test_concurrent_sessions_in_tasks_each_reach_their_own(gateway):
    client = openai.AsyncOpenAI(base_url=DEAD, api_key="sk-theirs")
    instrument_openai()

    async def flow(name: str) -> None:
        with use_session(gateway.session(name)):
            await _ask_async(client, f"of {name}")
            await asyncio.gather(*(_ask_async(client, f"of {name}") for _ in range(2)))

    async with client:
        with rollouts_running(), carry_context():
            await asyncio.gather(*(flow(f"s{i}") for i in range(N)))
    _check_own_sessions(gateway, 3)


async def test_concurrent_sessions_in_threads_and_shared_pools_each_reach_their_own(gateway):
    client = openai.OpenAI(base_url=DEAD, api_key="sk-theirs")
    shared = concurrent.futures.ThreadPoolExecutor(4)
    instrument_openai()

    def flow(name: str) -> None:
        ask = [client, f"of {name}"]
        with use_session(gateway.session(name)):
            thread = threading.Thread(target=_ask, args=ask)
            thread.start()
            futures = [shared.submit(_ask, *ask) for _ in range(2)]
            with concurrent.futures.ThreadPoolExecutor(2) as own:
                list(own.map(lambda _: _ask(*ask), range(2)))
            asyncio.run(in_executor(ask))
            thread.join()
            for future in futures:
                future.result()

    async def in_executor(ask: list[object]) -> None:
        await asyncio.get_running_loop().run_in_executor(shared, _ask, *ask)

    runner = concurrent.futures.ThreadPoolExecutor(N)
    with contextlib.closing(client), shared, runner, rollouts_running(), carry_context():
        list(runner.map(flow, [f"s{i}" for i in range(N)]))
    _check_own_sessions(gateway, 6)
