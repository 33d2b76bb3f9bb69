"""What stands behind the gateway: policies that miscount or fail, and providers, which are never trained on."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest

from rllm.errors import TraceStoreError
from rllm.gateway import Answer, Asked, Choice, Gateway, Prompted, ProviderUpstream
from rllm.plugins import PluginManager
from rllm.trace import TraceStore, instrument_openai, rollouts_running, uninstrument_openai
from rllm.types import SamplingParams

ASK = [{"role": "user", "content": "Is it right?"}]


class Counted:
    """An upstream that answers with the choices and usage it was given."""

    model_name = "counted"
    takes_all_parameters = False

    def __init__(self, *choices: Choice, usage: int) -> None:
        self.choices, self.usage = choices, usage

    def prompt(self, request, continued, *, is_chat: bool) -> Prompted:
        return Prompted((1, 2, 3), 0)

    async def answer(self, asked: Asked) -> Answer:
        return Answer(self.choices, 3, self.usage)

    async def close(self) -> None:
        """Nothing is open."""


def choice(ids: int = 10, logprobs: int = 10, versions: int = 10, finish: str = "stop", **fields: Any) -> Choice:
    message = {"role": "assistant", "content": "yes"}
    return Choice(message, finish, (7,) * ids, (-0.5,) * logprobs, (0,) * versions, **fields)


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[Gateway, TraceStore]]]:
    running: list[tuple[Gateway, TraceStore]] = []

    def start(policy, **routes) -> tuple[Gateway, TraceStore]:
        store = TraceStore(":memory:")
        gateway = Gateway(store=store, policy=policy, plugins=PluginManager(load_installed=False), routes=routes)
        gateway.start()
        running.append((gateway, store))
        return running[-1]

    yield start
    for gateway, store in running:
        gateway.stop()
        store.close()


def opened(gateway: Gateway, **fields: Any):
    defaults: dict[str, Any] = {"task_id": "t", "sample": 0, "is_training": True, "sampling": SamplingParams()}
    return gateway.open_session(**{**defaults, **fields})


def ask(session, **fields: Any):
    with openai.OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as client:
        reply = client.chat.completions.create(**{"model": "policy", "messages": ASK, **fields})
        return list(reply) if fields.get("stream") else reply


@pytest.mark.parametrize(
    ("upstream", "reason", "counts"),
    [
        (Counted(choice(), usage=10), None, None),
        (Counted(choice(logprobs=9), usage=10), "token counts differ", ("10 token ids", "9 logprobs")),
        (Counted(choice(ids=9), usage=9), "token counts differ", ("9 token ids", "10 logprobs")),
        (Counted(choice(), usage=11), "token counts differ", ("10 token ids", "11 completion tokens")),
        (Counted(choice(0, 0, 0), usage=4), "no token ids", None),
        (Counted(choice(untrainable="aborted", finish="aborted"), usage=10), "aborted", None),
    ],
)
def test_counts_that_disagree_make_a_step_untrainable_and_the_agent_gets_its_answer(serve, upstream, reason, counts):
    gateway, store = serve(upstream)
    session = opened(gateway)
    reply = ask(session)
    assert reply.choices[0].message.content == "yes"
    assert reply.choices[0].finish_reason in ("stop", "length")
    (step,) = store.steps(session.id)
    assert (step.status, step.untrainable) == ("ok", reason)
    assert all(count in (step.error or "") for count in counts or ())


def test_a_failed_call_is_forgotten_by_the_state_once_a_later_one_succeeds(bench):
    session = bench.open(max_calls=1)
    bench.sampler.fails = RuntimeError("out of slots")
    with pytest.raises(openai.InternalServerError, match="out of slots"):
        ask(session)
    assert "out of slots" in bench.gateway.session_state(session.id).upstream_error
    bench.sampler.fails = None
    ask(session)  # a call in which the engine failed is not charged to the rollout
    state = bench.gateway.session_state(session.id)
    assert (state.upstream_error, state.calls, state.completed_calls) == (None, 2, 1)
    assert [s.status for s in bench.steps(session)] == ["error", "ok"]


def test_a_call_that_can_not_be_recorded_is_not_answered(serve):
    gateway, store = serve(Counted(choice(), usage=10))
    session = opened(gateway)
    store.close()
    with pytest.raises(openai.InternalServerError, match="can't be recorded"):
        ask(session)
    assert "trace store" in gateway.session_state(session.id).upstream_error
    with pytest.raises(TraceStoreError):
        store.steps(session.id)


def test_plugins_hear_of_a_step_when_it_is_in_the_store_and_not_yet_answered(bench):
    heard: list[tuple[str, bool]] = []

    class Listener:
        def rllm_step_recorded(self, session, step) -> None:
            heard.append((step.key, step in bench.store.steps(session.id)))
            raise ValueError("a plugin's failure is its own")

    from rllm.hookspecs import hookimpl

    Listener.rllm_step_recorded = hookimpl(Listener.rllm_step_recorded)
    bench.gateway.plugins.register(Listener())
    reply = ask(bench.open(), n=2)
    assert heard == [(reply.id, True), (f"{reply.id}/1", True)]


class Provider:
    """A server that speaks the OpenAI wire: writes bodies down, answers with what it was told."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.status = 200
        self.message: dict[str, Any] = {"role": "assistant", "content": "looks right"}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                provider.seen.append((self.path, body))
                data = json.dumps(provider.answer(self.path, body)).encode()
                self.send_response(provider.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.send_header("retry-after-ms", "1")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Not to the terminal."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.status != 200:
            return {"error": {"message": "no such luck", "param": "response_format", "code": "odd"}}
        kind = {"message": self.message} if "chat" in path else {"text": "looks right"}
        one = {"index": 0, "finish_reason": "stop", "logprobs": None, **kind}
        return {
            "id": "theirs",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [one],
            "usage": {"prompt_tokens": 11, "completion_tokens": 22, "total_tokens": 33},
        }

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_providers_answer_is_recorded_with_its_own_usage_and_never_trained(serve, provider, stream):
    gateway, store = serve(Counted(choice(), usage=10), judge=ProviderUpstream(provider.url, "their-key", "big"))
    session = opened(gateway)
    reply = ask(session, model="judge", stream=stream, temperature=0.0)
    if stream:
        assert "".join(c.choices[0].delta.content or "" for c in reply) == "looks right"
        call_id = reply[0].id
    else:
        assert reply.choices[0].message.content == "looks right"
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (11, 22)
        call_id = reply.id
    (step,) = store.steps(session.id)
    assert (step.call_id, step.route, step.untrainable) == (call_id, "judge", "frozen upstream")
    assert (step.prompt_tokens, step.completion_ids, step.overridden) == (11, (), ())
    ((path, body),) = provider.seen
    assert path == "/v1/chat/completions"
    assert (body["model"], body["temperature"], body.get("stream")) == ("big", 0.0, None)
    assert gateway.session_state(session.id).sampled_tokens == 0


def test_a_provider_gets_parameters_and_contents_that_the_policy_would_refuse(serve, provider):
    gateway, store = serve(ProviderUpstream(provider.url, "k", "big"))
    session = opened(gateway, is_training=False, sampling=SamplingParams(max_tokens=33, temperature=0.5))
    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    asked = {
        "messages": [{"role": "user", "content": picture}],
        "response_format": {"type": "json_object"},
        "tool_choice": "required",
        "logit_bias": {"5": 1},
    }
    ask(session, **asked)
    ((_, body),) = provider.seen
    assert {name: body[name] for name in asked} == asked
    assert (body["max_tokens"], body["temperature"]) == (33, 0.5)  # of the run, where the request says nothing
    (step,) = store.steps(session.id)
    assert (step.route, step.untrainable) == ("policy", "frozen upstream")


def test_a_providers_conversation_is_stored_once(serve, provider):
    gateway, store = serve(ProviderUpstream(provider.url, "k", "big"))
    session = opened(gateway, is_training=False)
    messages = list(ASK)
    for turn in range(3):
        messages.append(ask(session, messages=messages).choices[0].message.model_dump(exclude_none=True))
        messages.append({"role": "user", "content": f"and {turn}?"})
    steps = store.steps(session.id)
    assert [s.parent for s in steps] == [None, steps[0].key, steps[1].key]
    assert [m["content"] for s in steps for m in s.added_messages] == ["Is it right?", "and 0?", "and 1?"]


def test_a_raw_completion_is_passed_on_as_text(serve, provider):
    gateway, _ = serve(ProviderUpstream(provider.url, "k", "big"))
    session = opened(gateway, is_training=False)
    with openai.OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as client:
        reply = client.completions.create(model="x", prompt="Say:", echo=True)
        with pytest.raises(openai.BadRequestError, match="takes text"):
            client.completions.create(model="x", prompt=[1, 2])
    assert reply.choices[0].text == "looks right"
    ((path, body),) = provider.seen
    assert (path, body["prompt"], body["echo"]) == ("/v1/completions", "Say:", True)


@pytest.mark.parametrize(
    ("status", "asked", "got", "is_infrastructure"), [(400, 1, 400, False), (401, 1, 503, True), (500, 3, 503, True)]
)
def test_a_providers_refusal_is_the_requests_fault_or_the_infrastructures(
    serve, provider, status, asked, got, is_infrastructure
):
    gateway, store = serve(ProviderUpstream(provider.url, "k", "big"))
    session = opened(gateway, is_training=False)
    provider.status = status
    with (
        openai.OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=5) as client,
        pytest.raises(openai.APIStatusError, match="no such luck") as caught,
    ):
        client.chat.completions.create(model="x", messages=ASK)
    assert caught.value.status_code == got
    assert len(provider.seen) == asked  # tried again behind the gateway, and by nobody else
    assert (gateway.session_state(session.id).upstream_error is not None) == is_infrastructure
    assert [s.status for s in store.steps(session.id)] == ["error"]


def test_a_provider_that_can_not_be_reached_is_named(serve):
    gateway, _ = serve(ProviderUpstream("http://127.0.0.1:9/v1", "k", "big"))
    with pytest.raises(openai.InternalServerError, match=r"'big' at http://127\.0\.0\.1:9/v1") as caught:
        ask(opened(gateway, is_training=False))
    assert caught.value.status_code == 503


def test_a_call_to_a_provider_goes_out_while_rollouts_run(serve, provider):
    gateway, store = serve(Counted(choice(), usage=10), judge=ProviderUpstream(provider.url, "k", "big"))
    session = opened(gateway)
    instrument_openai()
    try:
        with rollouts_running():
            from rllm.trace import use_session

            with use_session(session), openai.OpenAI(base_url="http://127.0.0.1:9", max_retries=0) as client:
                assert client.chat.completions.create(model="judge", messages=ASK).choices[0].message.content
                assert client.chat.completions.create(model="gpt", messages=ASK).choices[0].message.content == "yes"
    finally:
        uninstrument_openai()
    assert [s.route for s in store.steps(session.id)] == ["judge", "policy"]
    assert len(provider.seen) == 1


async def test_a_frozen_route_is_answered_while_the_policy_is_held(serve, provider):
    gateway, _ = serve(Counted(choice(), usage=10), judge=ProviderUpstream(provider.url, "k", "big"))
    session = opened(gateway)
    async with gateway.hold():
        await asyncio.to_thread(ask, session, model="judge")
        held = asyncio.create_task(asyncio.to_thread(ask, session))
        await asyncio.sleep(0.1)
        assert not held.done()
    assert (await held).choices[0].message.content == "yes"
