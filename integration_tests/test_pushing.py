"""`rllm model push` against a hub on loopback that speaks the Hugging Face hub's protocol."""

import base64
import hashlib
import json
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
import uvicorn
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .conftest import RLLM

TOKEN = "hf_of_a_test"


class Hub:
    """Repositories in memory: large files by the LFS protocol, small ones within the commit."""

    def __init__(self) -> None:
        self.private: dict[str, bool] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self._objects: dict[str, bytes] = {}
        routes = [
            Route("/api/repos/create", self._create, methods=["POST"]),
            Route("/api/validate-yaml", self._validate, methods=["POST"]),
            Route("/api/models/{repo:path}/preupload/main", self._preupload, methods=["POST"]),
            Route("/api/models/{repo:path}/commit/main", self._commit, methods=["POST"]),
            Route("/{repo:path}.git/info/lfs/objects/batch", self._batch, methods=["POST"]),
            Route("/objects/{oid}", self._put, methods=["PUT"]),
        ]
        self.server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), port=0, log_level="error"))

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"

    async def _create(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return JSONResponse({"error": "Invalid username or password."}, 401)
        data = await request.json()
        repo = f"{data['organization']}/{data['name']}"
        if repo.startswith("others/"):
            return JSONResponse({"error": "You don't have the rights to create a model under others"}, 403)
        if repo in self.files:
            return JSONResponse({"error": "You already created this model repo", "url": self._url(repo)}, 409)
        self.private[repo] = data.get("visibility") == "private" or data.get("private") is True  # 2.x, and 1.x
        self.files[repo] = {}
        return JSONResponse({"url": self._url(repo), "name": repo})

    def _url(self, repo: str) -> str:
        return f"{self.address}/{repo}"

    async def _validate(self, request: Request) -> Response:
        front = (await request.json())["content"].split("---\n")[1]
        assert isinstance(yaml.safe_load(front), dict)
        return JSONResponse({"errors": [], "warnings": []})

    async def _preupload(self, request: Request) -> Response:
        files = (await request.json())["files"]
        return JSONResponse(
            {
                "files": [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                        "shouldIgnore": False,
                        "oid": None,
                    }
                    for file in files
                ]
            }
        )

    async def _batch(self, request: Request) -> Response:
        objects = (await request.json())["objects"]
        return JSONResponse(
            {
                "transfer": "basic",
                "objects": [
                    {**o, "actions": {"upload": {"href": f"{self.address}/objects/{o['oid']}"}}} for o in objects
                ],
            }
        )

    async def _put(self, request: Request) -> Response:
        body = await request.body()
        assert hashlib.sha256(body).hexdigest() == request.path_params["oid"]
        self._objects[request.path_params["oid"]] = body
        return Response()

    async def _commit(self, request: Request) -> Response:
        repo = request.path_params["repo"]
        for line in (await request.body()).splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "file":
                self.files[repo][value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                self.files[repo][value["path"]] = self._objects[value["oid"]]
        return JSONResponse({"commitUrl": f"{self._url(repo)}/commit/1", "commitOid": "1", "commitMessage": ""})


@pytest.fixture
def hub():
    hub = Hub()
    thread = threading.Thread(target=hub.server.run)
    thread.start()
    while not hub.server.started:
        time.sleep(0.01)
    yield hub
    hub.server.should_exit = True
    thread.join()


@pytest.fixture
def push(hub, tmp_path):
    """``push("run", "me/name", …)``: the command's exit status and what it said."""

    def start(*args: str, token: str | None = TOKEN) -> tuple[int, str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        environment |= {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        environment |= {"NO_PROXY": "127.0.0.1"} | ({"HF_TOKEN": token} if token else {})
        done = subprocess.run(
            [RLLM, "model", "push", *args], env=environment, capture_output=True, text=True, timeout=120
        )
        return done.returncode, done.stdout + done.stderr

    return start


def contents(folder: str) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_a_run_is_pushed_as_it_lies_there_privately_and_again(hub, push, run):
    run(steps=1, lora__rank=4, optimizer__lr=1e-3)
    code, said = push("run", "me/letters")
    assert code == 0
    assert f"pushed to {hub.address}/me/letters" in said
    assert hub.files["me/letters"] == contents("run/model")
    assert hub.private["me/letters"] is True
    assert push("run", "me/letters")[0] == 0
    assert push("run/model", "me/public", "--public")[0] == 0
    assert hub.private["me/public"] is False
    assert push("run", "me/adapter", "--adapter")[0] == 0
    assert hub.files["me/adapter"] == contents("run/adapter")


def test_the_card_says_what_the_model_is_and_no_path_of_the_machine(run, tmp_path):
    first = run("chat", None, "letters", steps=1, run_dir="first")
    result = run("chat", None, "letters", steps=1, model=first.model_dir, grpo__std=False)
    card = Path("run/model/README.md").read_text()
    about = yaml.safe_load(card.split("---\n")[1])
    assert about["library_name"] == "transformers"
    assert "rllm" in about["tags"]
    assert "`first/model`" in card
    assert "1 step of 3 tasks × 4 rollouts" in card
    assert f"| after | {result.after.reward:.3f}" in card
    assert "grpo.std=False" in card
    assert str(tmp_path) not in card


@pytest.mark.parametrize(
    ("args", "token", "said"),
    [
        (("run", "me/letters"), None, "no token of the hub. Set HF_TOKEN, or run `hf auth login`"),
        (("run", "me/letters"), "hf_wrong", "401"),
        (("run", "others/letters"), TOKEN, "You don't have the rights to create a model under others"),
        (("run", "no name"), TOKEN, "no name"),
        (("run", "me/letters", "--adapter"), TOKEN, "has left no adapter: it trained no LoRA"),
        (("nowhere", "me/letters"), TOKEN, "there is no folder 'nowhere'"),
        (("run/checkpoints", "me/letters"), TOKEN, "neither config.json nor adapter_config.json"),
    ],
)
def test_what_can_not_be_pushed_is_said_in_one_line(args, token, said, push, run):
    run(steps=1)
    code, output = push(*args, token=token)
    assert code == 1
    assert said in output
    assert "Traceback" not in output
