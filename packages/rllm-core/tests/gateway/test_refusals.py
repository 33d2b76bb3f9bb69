"""What the gateway refuses: always in OpenAI's error form, with what is wrong by its name, and it lives on."""

import http.client
import json
import threading
import time

import openai
import pytest

ASK = [{"role": "user", "content": "hi"}]


def post(session, body: bytes, *, path: str = "/chat/completions", key: str | None = None) -> tuple[int, dict]:
    host, port = session.base_url.removeprefix("http://").split("/")[0].split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    prefix = "/sessions/" + session.id + "/v1"
    headers = {"authorization": f"Bearer {key or session.api_key}", "content-type": "application/json"}
    try:
        connection.request("POST", prefix + path, body, headers)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"functions": []}, "functions"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
         "messages[0].content[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"model": 5}, "model"),
        ({"stream_options": "yes"}, "stream_options"),
    ],
)  # fmt: skip
def test_a_parameter_that_can_not_be_honoured_is_named(bench, change, param):
    session = bench.open(is_training=False)
    body = {"model": "policy", "messages": ASK} | change
    status, answer = post(session, json.dumps(body).encode())
    assert (status, answer["error"]["param"]) == (400, param)
    assert bench.sampler.asked == []


@pytest.mark.parametrize("field", ["user", "metadata", "store", "service_tier"])
def test_a_parameter_that_changes_no_text_is_accepted(bench, field):
    session = bench.open()
    value = {"metadata": {"a": "b"}, "store": True}.get(field, "x")
    status, _ = post(session, json.dumps({"model": "policy", "messages": ASK, field: value}).encode())
    assert status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"model": "policy", "messages": [{"role": "user", "content": "\xff"}]}',
        b"[" * 100_000,
        b'{"model": "policy", "messages": [{"role": "user", "content": "\\ud800"}]}',
    ],
)
def test_a_malformed_body_gets_400_and_the_server_lives_on(bench, body):
    session = bench.open()
    status, answer = post(session, body)
    assert status == 400, answer
    assert answer["error"]["message"]
    assert post(session, json.dumps({"model": "policy", "messages": ASK}).encode())[0] == 200


def test_a_raw_completion_refuses_what_it_can_not_honour(bench):
    session = bench.open()
    for change, param in (({"echo": True}, "echo"), ({"best_of": 2}, "best_of"), ({"suffix": "x"}, "suffix"),
                          ({"prompt": ""}, "prompt"), ({"prompt": [-1]}, "prompt"), ({"prompt": [10**6]}, "prompt"),
                          ({"logprobs": 99}, "logprobs")):  # fmt: skip
        body = {"model": "policy", "prompt": "x"} | change
        status, answer = post(session, json.dumps(body).encode(), path="/completions")
        assert (status, answer["error"]["param"]) == (400, param)


def test_a_prompt_over_the_context_says_so(bench):
    session = bench.open()
    with (
        openai.OpenAI(base_url=session.base_url, api_key=session.api_key) as client,
        pytest.raises(openai.BadRequestError) as caught,
    ):
        client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "1 " * 600}])
    assert caught.value.code == "context_length_exceeded"
    assert bench.gateway.session_state(session.id).context_length_hit
    assert bench.steps(session)[0].status == "error"


def test_a_key_opens_its_own_session_and_no_other(bench):
    mine, other = bench.open(), bench.open()
    body = json.dumps({"model": "policy", "messages": ASK}).encode()
    status, answer = post(other, body, key=mine.api_key)
    assert (status, answer["error"]["code"]) == (403, "wrong_key")
    assert bench.steps(other) == []


def test_a_call_that_names_no_session_is_refused_and_the_key_alone_names_one(bench):
    session = bench.open()
    root = session.base_url.split("/sessions/")[0] + "/v1"
    with (
        openai.OpenAI(base_url=root, api_key="sk-other", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError, match="names no session"),
    ):
        client.chat.completions.create(model="policy", messages=ASK)
    with openai.OpenAI(base_url=root, api_key=session.api_key) as client:
        client.chat.completions.create(model="policy", messages=ASK)
    assert len(bench.steps(session)) == 1


def test_a_closed_session_answers_410_and_the_client_does_not_retry(bench):
    session = bench.open()
    bench.gateway.close_session(session.id)
    with (
        openai.OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=5) as client,
        pytest.raises(openai.APIStatusError, match="is closed") as caught,
    ):
        client.chat.completions.create(model="policy", messages=ASK)
    assert caught.value.status_code == 410
    assert caught.value.response.headers["x-should-retry"] == "false"


def test_closing_a_session_ends_the_call_in_flight(bench):
    session = bench.open()
    bench.sampler.delay_s = 30
    caught: list[openai.APIStatusError] = []

    def ask():
        with openai.OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as client:
            try:
                client.chat.completions.create(model="policy", messages=ASK)
            except openai.APIStatusError as error:
                caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while not bench.sampler.asked:
        time.sleep(0.01)
    steps = bench.gateway.close_session(session.id)
    thread.join(timeout=10)
    assert [s.status for s in steps] == ["cancelled"]
    assert caught[0].status_code == 410
    assert bench.sampler.cancelled == 1


def test_a_client_that_leaves_frees_its_slot(bench):
    session = bench.open()
    bench.sampler.delay_s = 30
    with (
        openai.OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0, timeout=0.3) as client,
        pytest.raises(openai.APITimeoutError),
    ):
        client.chat.completions.create(model="policy", messages=ASK)
    deadline = time.monotonic() + 10
    while not bench.sampler.cancelled and time.monotonic() < deadline:
        time.sleep(0.02)
    assert bench.sampler.cancelled == 1
    bench.gateway.close_session(session.id)
    assert [s.status for s in bench.steps(session)] == ["cancelled"]


def test_a_spent_budget_is_403_and_says_which(bench):
    calls, tokens = bench.open(max_calls=1), bench.open(max_tokens_total=2)
    for session, kind in ((calls, "call_limit"), (tokens, "token_limit")):
        with openai.OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=3) as client:
            client.chat.completions.create(model="policy", messages=ASK)
            with pytest.raises(openai.PermissionDeniedError) as caught:
                client.chat.completions.create(model="policy", messages=ASK)
        assert caught.value.code == kind
        assert bench.gateway.session_state(session.id).limit_hit == kind
        assert len(bench.steps(session)) == 1
    assert len(bench.steps(tokens)[0].completion_ids) <= 2


def test_a_failing_engine_is_the_infrastructures_doing_and_is_recorded(bench):
    from rllm.errors import BackendError

    session = bench.open()
    bench.sampler.fails = BackendError("the engine thread died: out of memory")
    status, answer = post(session, json.dumps({"model": "policy", "messages": ASK}).encode())
    assert status == 503
    assert "out of memory" in answer["error"]["message"]
    assert "out of memory" in bench.gateway.session_state(session.id).upstream_error
    assert bench.steps(session)[0].status == "error"
