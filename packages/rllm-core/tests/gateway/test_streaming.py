"""Streams: re-emitted by the gateway from a whole answer, joining to it, and marked where nobody read them."""

import http.client
import json
import socket
import time

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm.gateway.replies import PIECE, cut, shares
from rllm.gateway.upstreams import TokenText

ASK = [{"role": "user", "content": "Say it."}]
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("add", "sub")]
THREE_CALLS = (
    "Let me see.\n"
    '<tool_call>\n{"name": "add", "arguments": {"a": 1, "text": "a long one, longer than a piece of the stream"}}\n'
    '</tool_call>\n<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "sub", "arguments": {}}\n</tool_call><|im_end|>'
)


@pytest.fixture
def session(bench):
    return bench.open(is_training=False, max_tokens=300)


@pytest.fixture
def client(session):
    with openai.OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as client:
        yield client


def events(client, **fields):
    with client.chat.completions.with_streaming_response.create(model="m", messages=ASK, stream=True, **fields) as raw:
        lines = [line.removeprefix("data: ") for line in raw.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("n", [1, 3])
def test_every_choice_of_a_stream_joins_to_the_whole_answer_with_its_logprobs(bench, session, client, n):
    texts = ["Wörter, 漢字 und 🙂🙃 " * 4 + "end", "", "word " * 11 + "."][:n]
    bench.sampler.script = [text + "<|im_end|>" for text in texts] * 2
    whole = client.chat.completions.create(model="m", messages=ASK, n=n, logprobs=True, top_logprobs=2)
    chunks = list(
        client.chat.completions.create(model="m", messages=ASK, n=n, logprobs=True, top_logprobs=2, stream=True)
    )
    recorded = bench.steps(session)[n:]
    for k, choice in enumerate(whole.choices):
        mine = [c.choices[0] for c in chunks if c.choices[0].index == k]
        assert mine[0].delta.role == "assistant"
        assert "".join(c.delta.content or "" for c in mine) == texts[k] == choice.message.content
        assert [c.finish_reason for c in mine] == [None] * (len(mine) - 1) + ["stop"]
        assert mine[-1].token_ids == choice.token_ids == list(recorded[k].completion_ids)
        assert [e for c in mine if c.logprobs for e in c.logprobs.content] == choice.logprobs.content
        assert len(choice.logprobs.content) == len(choice.token_ids)


def test_usage_is_in_the_last_event_alone_and_whole_numbers(client):
    got = events(client, stream_options={"include_usage": True})
    assert ["usage" in event for event in got] == [False] * (len(got) - 1) + [True]
    assert got[-1]["choices"] == []
    assert all(type(count) is int for count in got[-1]["usage"].values())
    assert all("usage" not in event for event in events(client))


def test_parallel_tool_calls_come_apart_by_index_with_tools_stream_and_logprobs_together(bench, session, client):
    bench.sampler.script = [THREE_CALLS]
    chunks = list(
        client.chat.completions.create(model="m", messages=ASK, tools=TOOLS, stream=True, logprobs=True, top_logprobs=1)
    )
    calls: dict[int, dict[str, str]] = {}
    for piece in (call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()):
        call = calls.setdefault(piece.index, {"id": "", "name": "", "arguments": ""})
        call["id"] += piece.id or ""
        call["name"] += piece.function.name or ""
        call["arguments"] += piece.function.arguments or ""
    assert sorted(calls) == [0, 1, 2]
    assert [calls[k]["name"] for k in range(3)] == ["add", "add", "sub"]
    assert [json.loads(calls[k]["arguments"]) for k in range(3)] == [
        {"a": 1, "text": "a long one, longer than a piece of the stream"},
        {"a": 2},
        {},
    ]
    assert len({call["id"] for call in calls.values()}) == 3
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    (step,) = bench.steps(session)
    assert [call["id"] for call in step.message["tool_calls"]] == [calls[k]["id"] for k in range(3)]
    assert sum(len(c.choices[0].logprobs.content) for c in chunks if c.choices[0].logprobs) == len(step.completion_ids)


def test_raw_completions_stream_their_text_and_logprobs(bench, client):
    text = "a text of more than one piece, with 🙂 in it"
    bench.sampler.script = [text + "<|im_end|>"] * 2
    whole = client.completions.create(model="m", prompt="Say:", logprobs=2)
    chunks = list(client.completions.create(model="m", prompt="Say:", logprobs=2, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == text == whole.choices[0].text
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        joined = [x for c in chunks if c.choices[0].logprobs for x in getattr(c.choices[0].logprobs, name)]
        assert joined == getattr(whole.choices[0].logprobs, name)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].choices[0].token_ids == whole.choices[0].token_ids
    offsets = whole.choices[0].logprobs.text_offset
    assert all(text.startswith(whole.choices[0].logprobs.tokens[k], offsets[k]) for k in range(5))


def test_a_stream_that_is_not_read_to_the_end_is_marked_cut(bench, session):
    bench.sampler.script = ["word " * 50 + "<|im_end|>"] * 128
    body = json.dumps({"model": "m", "messages": ASK, "stream": True, "n": 128, "logprobs": True, "top_logprobs": 2})
    host, port = bench.gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"POST /sessions/{session.id}/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}"
        wire.sendall(f"{head}\r\n\r\n{body}".encode())
        assert b"200" in wire.recv(200)
    deadline = time.monotonic() + 20
    while {s.status for s in bench.steps(session)} != {"cut"} and time.monotonic() < deadline:
        time.sleep(0.02)
    steps = bench.steps(session)
    assert [(s.status, s.untrainable) for s in steps] == [("cut", "call cut")] * 128
    assert all(len(s.completion_ids) > 0 for s in steps)
    assert bench.gateway.close_session(session.id) == steps


def test_closing_a_session_ends_a_stream_that_nobody_reads(bench, session):
    bench.sampler.script = ["word " * 50 + "<|im_end|>"] * 128
    connection = http.client.HTTPConnection(bench.gateway.url.removeprefix("http://"), timeout=20)
    body = {"model": "m", "messages": ASK, "stream": True, "n": 128, "logprobs": True, "top_logprobs": 2}
    connection.request("POST", f"/sessions/{session.id}/v1/chat/completions", json.dumps(body))
    response = connection.getresponse()
    assert response.status == 200
    assert {s.status for s in bench.gateway.close_session(session.id)} == {"cut"}
    with pytest.raises(http.client.IncompleteRead):
        response.read()
    response.close()
    connection.close()


@given(st.text(max_size=200), st.lists(st.binary(max_size=4), max_size=80))
def test_pieces_join_to_the_text_and_every_token_goes_with_one_of_them(text, raws):
    pieces = cut(text)
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= PIECE for piece in pieces)
    tokens = [TokenText(str(k), raw, 0.0, ()) for k, raw in enumerate(raws)]
    parts = shares(pieces, tokens)
    assert len(parts) == len(pieces) + 1
    assert [token for part in parts for token in part] == tokens
