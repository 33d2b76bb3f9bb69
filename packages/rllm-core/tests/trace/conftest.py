"""A server on loopback that speaks the OpenAI wire and writes down every request; it stands for the gateway and, under
other addresses, for a provider that nothing may reach."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rllm.trace import Session, uninstrument_openai


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case; a header that came several times is joined by commas."""
    body: dict[str, Any]

    @property
    def session_id(self) -> str:
        """From the URL."""
        return self.path.split("/")[2]

    @property
    def asked(self) -> str:
        """The last message's text."""
        return self.body["messages"][-1]["content"]


@dataclass
class WireServer:
    """Answers every chat completion with ``re: <question>``."""

    failures: int = 0
    """How many requests are still to be answered with 500."""
    seen: list[Seen] = field(default_factory=list)
    url: str = ""

    def session(self, name: str, **fields: Any) -> Session:
        """A session whose URL is on this server."""
        return Session(id=name, base_url=f"{self.url}/sessions/{name}/v1", api_key=f"rllm-{name}-key", **fields)


def _completion(body: dict[str, Any]) -> dict[str, Any]:
    text = f"re: {body['messages'][-1]['content']}"
    if body.get("response_format", {}).get("type") == "json_schema":
        text = json.dumps({"answer": 7})
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {
        "id": "call-1",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [choice],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def _chunks(body: dict[str, Any]) -> list[dict[str, Any]]:
    root = {"id": "call-1", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
    words = ["re: ", body["messages"][-1]["content"]]
    deltas = [{"role": "assistant", "content": ""}, *({"content": word} for word in words), {}]
    ends = [None] * (len(deltas) - 1) + ["stop"]
    return [
        {**root, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]}
        for delta, end in zip(deltas, ends, strict=True)
    ]


def _handler(server: WireServer) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._note({})
            self._send({"object": "list", "data": [{"id": "policy", "object": "model", "created": 0, "owned_by": "x"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self._note(body)
            with lock:
                fails = server.failures > 0
                server.failures -= fails
            if fails:
                self._send({"error": {"message": "try again"}}, status=500)
            elif body.get("stream"):
                lines = [*(json.dumps(chunk) for chunk in _chunks(body)), "[DONE]"]
                self._send_bytes("".join(f"data: {line}\n\n" for line in lines).encode(), "text/event-stream")
            elif self.path.partition("?")[0].endswith("/chat/completions"):
                self._send(_completion(body))
            else:
                choice = {"index": 0, "text": f"re: {body['prompt']}", "finish_reason": "stop", "logprobs": None}
                self._send(
                    {"id": "c", "object": "text_completion", "created": 0, "model": body["model"], "choices": [choice]}
                )

        def _note(self, body: dict[str, Any]) -> None:
            headers: dict[str, str] = {}
            for name, value in self.headers.items():
                headers[name.lower()] = f"{headers[name.lower()]}, {value}" if name.lower() in headers else value
            server.seen.append(Seen(self.command, self.path, headers, body))

        def _send(self, data: dict[str, Any], status: int = 200) -> None:
            self._send_bytes(json.dumps(data).encode(), "application/json", status)

        def _send_bytes(self, data: bytes, content_type: str, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(data)))
            self.send_header("x-request-id", "call-1")
            if status == 500:
                self.send_header("retry-after-ms", "1")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Not to the terminal."""

    return Handler


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@pytest.fixture
def start_server() -> Iterator[Callable[[], WireServer]]:
    """Starts servers that end with the test."""
    running: list[tuple[_Http, threading.Thread]] = []

    def start() -> WireServer:
        server = WireServer()
        http = _Http(("127.0.0.1", 0), _handler(server))
        server.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        running.append((http, thread))
        return server

    yield start
    for http, thread in running:
        http.shutdown()
        http.server_close()
        thread.join()


@pytest.fixture
def gateway(start_server: Callable[[], WireServer]) -> WireServer:
    """Stands for the gateway."""
    return start_server()


@pytest.fixture
def provider(start_server: Callable[[], WireServer]) -> WireServer:
    """Stands for a paid provider."""
    return start_server()


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No key from the outside, no proxy, and the classes as they were afterwards."""
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_BASE_URL", "AZURE_OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield
    uninstrument_openai()
