"""Every test here has a home of its own, so that none sees the user's models or keys."""

import json

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    path = tmp_path / "home"
    monkeypatch.setenv("RLLM_HOME", str(path))
    return path


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "some-model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return path
