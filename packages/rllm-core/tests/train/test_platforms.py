"""What other systems lack, simulated: runs are stopped and saved there too."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from rllm.train import checkpoints
from rllm.train.stopping import Stopping


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signals_are_heard_where_event_loops_take_no_handlers(monkeypatch, number):
    """As on Windows."""

    def refuses(*_):
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", refuses)
    before, said, stopping = signal.getsignal(number), [], Stopping(listens=True)
    with stopping.attached(said.append):
        signal.raise_signal(number)
        await asyncio.sleep(0)
        assert stopping.by == number.name
    assert said == [f"{number.name}: stopping after this step, and saving; once more to stop at once"]
    assert signal.getsignal(number) is before


def test_a_checkpoint_is_flushed_where_no_folder_can_be_opened_nor_a_file_for_reading_alone(monkeypatch, tmp_path):
    """As on Windows."""
    real_open, real_sync, flags_of = os.open, os.fsync, {}

    def opens(path, flags, *rest):
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied", str(path))
        descriptor = real_open(path, flags, *rest)
        flags_of[descriptor] = flags
        return descriptor

    def syncs(descriptor):
        assert flags_of[descriptor] & os.O_RDWR
        real_sync(descriptor)

    monkeypatch.setattr(checkpoints, "CAN_FLUSH_FOLDERS", False)
    monkeypatch.setattr(os, "open", opens)
    monkeypatch.setattr(os, "fsync", syncs)
    partial = tmp_path / ".step-000001.partial"
    (partial / "backend" / "inner").mkdir(parents=True)
    (partial / "backend" / "inner" / "weights").write_bytes(b"123")
    checkpoints._seal(partial, tmp_path / "step-000001", {"steps": 1})
    written = (tmp_path / "step-000001" / "checkpoint.json").read_text()
    assert '"backend/inner/weights": "3:' in written
