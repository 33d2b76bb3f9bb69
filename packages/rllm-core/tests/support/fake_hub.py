"""A hub on loopback that serves data sets by the Hugging Face hub's protocol, as far as ``datasets`` speaks it.

The repositories are laid out as the real ones (file names, card, column names and types), with a few rows each, so that
the loaders under test are the real ones.
"""

import hashlib
import io
import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow
import pyarrow.parquet
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Rows = Sequence[Mapping[str, Any]]


class FakeHub:
    """Data sets by name, each with commits, which are mappings of file name → bytes; ``main`` is the newest one."""

    def __init__(self, repos: Mapping[str, Mapping[str, bytes]]) -> None:
        self._commits: dict[str, dict[str, Mapping[str, bytes]]] = {}
        self.gated: set[str] = set()
        self.asked: list[str] = []
        """The path of each request."""
        api, repo = "/api/datasets/{repo_owner}/{repo_name}", "/datasets/{repo_owner}/{repo_name}"
        routes = [
            Route(api, self._info),
            Route(api + "/revision/{revision}", self._info),
            Route(api + "/auth-check", self._auth_check),
            Route(api + "/tree/{revision}", self._tree),
            Route(api + "/tree/{revision}/{path:path}", self._tree),
            Route(api + "/paths-info/{revision}", self._paths_info, methods=["POST"]),
            Route(repo + "/resolve/{revision}/{path:path}", self._file, methods=["GET", "HEAD"]),
        ]
        self._server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), port=0, log_level="error"))
        self._thread = threading.Thread(target=self._server.run)
        for name, files in repos.items():
            self.publish(name, files)

    def __enter__(self) -> "FakeHub":
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def publish(self, repo: str, files: Mapping[str, bytes]) -> str:
        """A new commit with these files alone; its hash, which follows from them."""
        commit = hashlib.sha1(b"".join(name.encode() + data for name, data in sorted(files.items()))).hexdigest()
        commits = self._commits.setdefault(repo, {})
        commits.pop(commit, None)
        commits[commit] = dict(files)
        return commit

    def repos(self) -> list[str]:
        return [*self._commits]

    def commit(self, repo: str) -> str:
        """The newest one."""
        return [*self._commits[repo]][-1]

    def files(self, repo: str) -> Mapping[str, bytes]:
        return self._commits[repo][self.commit(repo)]

    def remove(self, repo: str) -> None:
        """As if there had never been such a data set."""
        del self._commits[repo]

    def _asked(self, request: Request) -> "tuple[str, str, Response | None]":
        """Repository, commit, and what is answered where there is none."""
        self.asked.append(request.url.path)
        repo = f"{request.path_params['repo_owner']}/{request.path_params['repo_name']}"
        if repo not in self._commits:
            # Without a token the real hub does not tell a missing set from a private one.
            return repo, "", _error(401, "RepoNotFound", "Invalid username or password.")
        revision = request.path_params.get("revision", "main")
        commit = self.commit(repo) if revision == "main" else revision
        if commit not in self._commits[repo]:
            return repo, commit, _error(404, "RevisionNotFound", "Invalid rev id")
        return repo, commit, None

    async def _info(self, request: Request) -> Response:
        repo, commit, refusal = self._asked(request)
        if refusal:
            return refusal
        siblings = [{"rfilename": name} for name in sorted(self._commits[repo][commit])]
        gated = "auto" if repo in self.gated else False
        return JSONResponse({"id": repo, "sha": commit, "gated": gated, "siblings": siblings})

    async def _auth_check(self, request: Request) -> Response:
        repo, _, refusal = self._asked(request)
        return refusal or (_closed(repo) if repo in self.gated else JSONResponse({}))

    async def _tree(self, request: Request) -> Response:
        repo, commit, refusal = self._asked(request)
        if refusal:
            return refusal
        files = self._commits[repo][commit]
        folder = request.path_params.get("path", "")
        inside = [n for n in files if not folder or n.startswith(f"{folder}/")]
        if not inside:
            return _error(404, "EntryNotFound", f"{folder} does not exist")
        found: dict[str, Any] = {}
        for name in inside:
            parts = name.removeprefix(f"{folder}/" if folder else "").split("/")
            top = f"{folder}/{parts[0]}" if folder else parts[0]
            if request.query_params.get("recursive", "").lower() in ("true", "1"):
                found[name] = _entry(files, name)
                parents = name.split("/")[:-1]
                for depth in range(1, len(parents) + 1):
                    found.setdefault("/".join(parents[:depth]), _folder("/".join(parents[:depth])))
            else:
                found[top] = _entry(files, top) if len(parts) == 1 else _folder(top)
        return JSONResponse(list(found.values()))

    async def _paths_info(self, request: Request) -> Response:
        repo, commit, refusal = self._asked(request)
        if refusal:
            return refusal
        body = await request.body()
        asked = json.loads(body)["paths"] if body[:1] == b"{" else (await request.form()).getlist("paths")
        files = self._commits[repo][commit]
        found = [_entry(files, path) for path in asked if path in files]
        folders = [_folder(path) for path in asked if any(name.startswith(f"{path}/") for name in files)]
        return JSONResponse([*found, *folders])

    async def _file(self, request: Request) -> Response:
        repo, commit, refusal = self._asked(request)
        if refusal:
            return refusal
        name = request.path_params["path"]
        if repo in self.gated:
            return _closed(repo)
        if name not in self._commits[repo][commit]:
            return _error(404, "EntryNotFound", "Entry not found", commit)
        data = self._commits[repo][commit][name]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_oid(data)}"', "Content-Length": str(len(data))}
        return Response(b"" if request.method == "HEAD" else data, headers=headers)


def _closed(repo: str) -> Response:
    return _error(401, "GatedRepo", f"Access to dataset {repo} is restricted. You must be authenticated.")


def _error(status: int, code: str, message: str, commit: str | None = None) -> Response:
    headers = {"X-Error-Code": code, "X-Error-Message": message} | ({"X-Repo-Commit": commit} if commit else {})
    return JSONResponse({"error": message}, status, headers=headers)


def _entry(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(files[name]), "oid": _oid(files[name])}


def _folder(path: str) -> dict[str, Any]:
    return {"type": "directory", "path": path, "size": 0, "oid": hashlib.sha1(path.encode()).hexdigest()}


def _oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


# --- what the real repositories hold ------------------------------------------------------------------------------


def parquet_repo(configs: Mapping[str, Mapping[str, Rows]]) -> dict[str, bytes]:
    """A repository of Parquet files, a folder for each configuration, named in the card."""
    files: dict[str, bytes] = {}
    card = ["---", "configs:"]
    for config, splits in configs.items():
        card += [f"- config_name: {config}", "  data_files:"]
        for split, rows in splits.items():
            files[f"{config}/{split}-00000-of-00001.parquet"] = _parquet(rows)
            card += [f"  - split: {split}", f"    path: {config}/{split}-*"]
    return files | {"README.md": "\n".join([*card, "---", ""]).encode()}


def jsonl_repo(splits: Mapping[str, Rows]) -> dict[str, bytes]:
    """A repository of JSON Lines, a file for each split; the card says nothing of them."""
    files = {
        f"{split}.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode() for split, rows in splits.items()
    }
    return files | {"README.md": b"---\nlanguage:\n- en\n---\n"}


def _parquet(rows: Rows) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), buffer)
    return buffer.getvalue()
