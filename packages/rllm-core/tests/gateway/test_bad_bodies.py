"""Whatever arrives is answered or refused with 400: no body makes the gateway fail, and none stops it."""

import copy
import http.client
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "3"},
        {"role": "user", "content": "go on", "name": "me"},
    ],
    "tools": [{"type": "function", "function": {"name": "add", "description": "d", "parameters": {"type": "object"}}}],
    "tool_choice": "auto",
    "stop": ["x"],
    "n": 1,
    "seed": 1,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "max_tokens": 4,
    "max_completion_tokens": 4,
    "stream": False,
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 2,
    "response_format": {"type": "text"},
    "parallel_tool_calls": True,
    "logit_bias": {},
    "user": "u",
    "metadata": {"a": "b"},
}
RAW = {"model": "m", "prompt": [5, 6, 7], "logprobs": 1, "echo": False, "suffix": None, "best_of": 1, "max_tokens": 4}

odd = st.recursive(
    st.sampled_from([None, True, False, 0, -1, 1, 2**31, 2**70, 10**400, 0.5, -0.5, 1e308, "", "x", "auto", [], {}])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def places(value, path=()):
    """Every place in a body."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


def changed(body, path, value):
    body = copy.deepcopy(body)
    where = body
    for key in path[:-1]:
        where = where[key]
    where[path[-1]] = value
    return body


@pytest.mark.parametrize("dialect", ["chat/completions", "completions"])
def test_no_value_at_any_place_makes_the_gateway_fail(bench, dialect):
    sane = CHAT if dialect.startswith("chat") else RAW
    session = bench.open(is_training=False)
    connection = http.client.HTTPConnection(bench.gateway.url.removeprefix("http://"), timeout=20)

    def post(body):
        connection.request("POST", f"/sessions/{session.id}/v1/{dialect}", json.dumps(body))
        reply = connection.getresponse()
        return reply.status, reply.read()

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from([p for p in places(sane) if p]), odd)
    def holds(path, value):
        status, raw = post(changed(sane, path, value))
        assert status in (200, 400), raw
        if status == 400:
            error = json.loads(raw)["error"]
            assert error["message"]
            assert error["type"] == "invalid_request_error"

    assert post(sane)[0] == 200
    try:
        holds()
        assert post(sane)[0] == 200
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b'{"model": "m", "messages": [], "temperature": NaN}', "NaN is no JSON number"),
        (b'{"model": "m", "messages": [], "temperature": Infinity}', "Infinity is no JSON number"),
        (
            b'{"model": "m", "temperature": 1e999, "messages": [{"role": "user", "content": "x"}]}',
            "temperature must be",
        ),
        (b'{"seed": ' + b"9" * 5000 + b"}", "no JSON"),
        (b'{"model": "m", "messages": [{"role": "user", "content": "\\uDC00"}]}', "Unicode"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"\xef\xbb\xbf{}", "no JSON"),
    ],
)
def test_what_is_no_json_is_refused_with_what_is_wrong(bench, raw, says):
    session = bench.open()
    connection = http.client.HTTPConnection(bench.gateway.url.removeprefix("http://"), timeout=20)
    try:
        connection.request("POST", f"/sessions/{session.id}/v1/chat/completions", raw)
        reply = connection.getresponse()
        assert reply.status == 400
        assert says in json.loads(reply.read())["error"]["message"]
    finally:
        connection.close()
