"""What a run leaves behind, in a real vLLM server: the same logprobs. `make test-vllm` runs it."""

import json
import os
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from rllm.models import resolve_model

from .test_exports import trained_steps

PYTHON = os.environ.get("RLLM_TEST_VLLM")
"""The interpreter of an environment with vLLM."""

pytestmark = [
    pytest.mark.skipif(PYTHON is None, reason="needs vLLM in an environment of its own: make test-vllm"),
    pytest.mark.timeout(900),
]


@pytest.fixture
def serve(tmp_path):
    """``serve("name", model, …)``: the address of a vLLM server, stopped after the test."""
    processes = []

    def start(model: str, *args: str) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "model"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", "512"]
        log = tmp_path / "vllm.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [*command, "--enforce-eager", *args],
                env=os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "NO_PROXY": "127.0.0.1"},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        processes.append(process)
        address = f"http://127.0.0.1:{port}"
        while process.poll() is None:
            try:
                urllib.request.urlopen(f"{address}/health").close()
                return address
            except OSError:
                time.sleep(0.5)
        raise AssertionError(f"vLLM has ended: {log.read_text()[-3000:]}")

    yield start
    for process in processes:
        process.terminate()
        process.wait(timeout=60)


def gap(address: str, model: str, steps: list) -> float:
    """The greatest difference in nats between the server's logprobs and those that the run recorded."""
    gaps = []
    for step in steps:
        ids = [*step.added_ids, *step.completion_ids]
        body = json.dumps({"model": model, "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0}).encode()
        call = urllib.request.Request(f"{address}/v1/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(call) as reply:
            found = json.load(reply)["choices"][0]["prompt_logprobs"]
        for token, logprob, scored in zip(
            step.completion_ids, step.logprobs, found[-len(step.completion_ids) :], strict=True
        ):
            gaps.append(abs(scored[str(token)]["logprob"] - logprob))
    return max(gaps)


def test_a_full_run(run, serve):
    result = run("chat", None, "letters", steps=2, validation__limit=8)
    address = serve(str(Path(result.model_dir).resolve()))
    assert gap(address, "model", trained_steps("run")) < 1e-4


def test_a_lora_run(run, serve):
    result = run("chat", None, "letters", steps=2, validation__limit=8, lora__rank=8, optimizer__lr=1e-2)
    steps = trained_steps("run")
    assert gap(serve(str(Path(result.model_dir).resolve())), "model", steps) < 1e-4
    adapter = Path("run/adapter").resolve()
    address = serve(resolve_model("rllm-tiny").path, "--enable-lora", "--lora-modules", f"adapter={adapter}")
    assert gap(address, "adapter", steps) < 1e-4
    assert gap(address, "model", steps) > 1e-3, "the run has changed it"
