"""The user's models and keys on disk: private, whole, and complained about by name when broken."""

import json
import os
import stat
import threading

import pytest

from rllm.errors import ConfigError
from rllm.models import find_model, list_models, setup_model


def set_up(name="big", key="sk-secret"):
    setup_model(name, base_url="https://api.example.com/v1", model_id="big-1", api_key=key)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_lie_in_a_file_that_only_their_owner_reads(home):
    before = os.umask(0)
    try:
        set_up()
    finally:
        os.umask(before)
    assert mode(home / "config") == 0o700
    assert mode(home / "config" / "keys.json") == 0o600
    assert json.loads((home / "config" / "keys.json").read_text()) == {"big": "sk-secret"}


def test_the_models_file_holds_no_key_and_no_scratch_file_stays(home):
    set_up()
    assert "sk-secret" not in (home / "config" / "models.json").read_text()
    assert {path.name for path in (home / "config").iterdir()} == {"models.json", "keys.json", ".lock"}


def test_a_keys_file_that_others_can_read_is_refused_with_the_command_that_mends_it(home):
    set_up()
    (home / "config" / "keys.json").chmod(0o644)
    with pytest.raises(ConfigError, match=r"chmod 600 .*keys\.json"):
        find_model("big")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"models\.json is no JSON"),
        ("[]", "holds a list"),
        ('{"big": {}}', "model 'big' can't be read: it needs either a path or a base_url"),
        ('{"big": {"base_url": "https://a.example/v1"}}', "base_url and model_id go together"),
        ('{"big": {"path": "a/b", "colour": "red"}}', "model 'big' can't be read: .*[Ee]xtra"),
    ],
)
def test_a_broken_file_is_named_with_its_entry(text, message, home):
    (home / "config").mkdir(parents=True)
    (home / "config" / "models.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        list_models()


def test_a_broken_keys_file_does_not_show_its_keys(home):
    set_up()
    (home / "config" / "keys.json").write_text('{"big": sk-secret')
    with pytest.raises(ConfigError, match=r"keys\.json is no JSON") as caught:
        find_model("big")
    assert "sk-secret" not in str(caught.value)


def test_a_home_that_can_not_be_written_is_said_with_a_way_out(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RLLM_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"can't be saved in .*RLLM_HOME"):
        set_up()


def test_models_set_up_at_the_same_time_are_all_kept():
    threads = [threading.Thread(target=set_up, args=(f"m{i}", f"key-{i}")) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {f"m{i}": f"key-{i}" for i in range(12)} == {
        s.name: s.api_key for s in list_models() if s.kind == "provider"
    }
