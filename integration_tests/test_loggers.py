"""Each logger, written through by a run that is resumed once, and read back with its own library."""

import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rllm


def run_in_two_parts(run, logger: str, **settings) -> list[float]:
    """Three steps, one of them after a resume; the rewards of ``metrics.jsonl``."""
    run(run_dir="run", steps=2, loggers=logger, **settings)
    rllm.AgentTrainer(resume="run", settings={"steps": 3}).train()
    from rllm.evals.runs import read_run

    return read_run(Path("run")).rewards


def test_tensorboard(run):
    pytest.importorskip("tensorboard")
    rewards = run_in_two_parts(run, "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator("run/tensorboard").Reload()
    found = events.Scalars("reward/mean")
    assert [event.step for event in found] == [1, 2, 3]
    assert [event.value for event in found] == pytest.approx(rewards)
    assert [event.step for event in events.Scalars("validation/reward")] == [0, 2, 3]


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """Of the log that wandb keeps of an offline run: a header of 7 bytes, then LevelDB's log format."""
    position, record = 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


def test_wandb_offline(run):
    pytest.importorskip("wandb")
    rewards = run_in_two_parts(run, "wandb", wandb__mode="offline", wandb__project="sums")
    from wandb.proto import wandb_internal_pb2

    found: dict[int, float] = {}
    for file in sorted(Path("run/wandb").glob("offline-run-*/run-*.wandb")):
        for data in leveldb_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            items = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
            if "reward/mean" in items:
                found[int(items["_step"])] = float(items["reward/mean"])
    assert found == pytest.approx(dict(enumerate(rewards, start=1)))


def test_trackio(run, tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    rewards = run_in_two_parts(run, "trackio", trackio__project="sums")
    from trackio.sqlite_storage import SQLiteStorage

    (name,) = SQLiteStorage.get_runs("sums")
    lines = SQLiteStorage.get_logs("sums", name)
    found = {line["step"]: line["reward/mean"] for line in lines if "reward/mean" in line}
    assert found == pytest.approx(dict(enumerate(rewards, start=1)))


def test_mlflow(run):
    mlflow = pytest.importorskip("mlflow")
    rewards = run_in_two_parts(run, "mlflow", mlflow__experiment="sums")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{Path('run/mlflow.db').resolve()}")
    experiment = client.get_experiment_by_name("sums")
    (logged,) = client.search_runs([experiment.experiment_id])
    found = {metric.step: metric.value for metric in client.get_metric_history(logged.info.run_id, "reward/mean")}
    assert found == pytest.approx(dict(enumerate(rewards, start=1)))
    assert logged.info.status == "FINISHED"
    assert logged.data.params["optimizer.lr"] == "0.001"


def test_a_logger_whose_package_is_not_there_is_said_before_anything_starts(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(rllm.ConfigError, match=r"loggers=wandb needs a package.*pip install 'rllm-core\[wandb\]'"):
        run(loggers="wandb")
    with pytest.raises(rllm.ConfigError, match=r"no logger 'wand'.*'wandb'"):
        run(loggers="wand")
    with pytest.raises(rllm.ConfigError, match=r"'wandb\.mode' is set, but loggers is \[\]"):
        run(wandb__mode="offline")
    assert not Path("run/metrics.jsonl").read_text()


def test_a_logger_that_fails_later_is_left_out_and_the_run_goes_on(run, monkeypatch, capfd):
    from torch.utils import tensorboard

    class Unreachable:
        def __init__(self, *_, **__):
            self.calls = 0

        def add_scalar(self, name, value, step):
            if step == 1:
                raise ConnectionError("the network is gone")

        def flush(self): ...

        def close(self):
            raise AssertionError("it was left out")

    monkeypatch.setattr(tensorboard, "SummaryWriter", Unreachable)
    assert run(loggers="tensorboard").steps == 2
    assert capfd.readouterr().out.count("the logger 'tensorboard' failed and is left out: ConnectionError") == 1


def test_help_lists_the_loggers_settings():
    rllm_command = str(Path(sys.executable).with_name("rllm"))
    said = subprocess.run([rllm_command, "train", "--settings"], capture_output=True, text=True, check=True).stdout
    assert "wandb.mode=online" in said
    assert "loggers=[]" in said
