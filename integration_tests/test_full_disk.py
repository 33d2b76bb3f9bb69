"""A disk that is full at any of a run's writes: one clear error, nothing lost that was saved, and it goes on later."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import rllm

from .conftest import outcome

MIB = 1 << 20
SIZE = 128 * MIB
SETTINGS = {"steps": 3, "checkpoint__every_steps": 1, "lora__rank": 4, "batch_tasks": 2, "validation__limit": 2}


@pytest.fixture
def small_disk(tmp_path):
    """A file system in memory, of its own, which can be filled up."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(disk)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"needs to mount a file system: {made.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path, *, free: int) -> None:
    """Leave so many bytes."""
    (disk / "ballast").unlink(missing_ok=True)
    found = os.statvfs(disk)
    with (disk / "ballast").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - free)


def written(disk: Path) -> int:
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def fails_and_goes_on(disk: Path, run, free: int, capfd) -> bool:
    """One run with so much room, and its end with enough of it; whether it failed at all."""
    folder = disk / "run"
    shutil.rmtree(folder, ignore_errors=True)
    fill(disk, free=free)
    error: rllm.RLLMError | None = None
    try:
        run(run_dir=str(folder), **SETTINGS)
    except rllm.RLLMError as raised:
        error = raised
    assert error is None or re.search(r"(?i)no space|full|can't be", str(error)), error
    (disk / "ballast").unlink()
    saved = max([int(path.name[-6:]) for path in folder.glob("checkpoints/step-*")], default=0)
    capfd.readouterr()
    if error is not None and (folder / "config.yaml").exists():
        rllm.AgentTrainer(resume=str(folder)).train()
        said = capfd.readouterr().out
        assert not saved or f"going on after step {saved}" in said
        assert "is damaged" not in said
    elif error is not None:
        run(run_dir=str(folder), **SETTINGS)
    return error is not None


def scan(disk: Path, run, capfd, small_step: int, large_steps: int) -> None:
    run(run_dir=str(disk / "whole"), **SETTINGS)
    needed, whole = written(disk), outcome(disk / "whole")
    shutil.rmtree(disk / "whole")
    rooms = [*range(0, 256 << 10, small_step), *range(256 << 10, 2 * needed, 2 * needed // large_steps)]
    failed = []
    for free in rooms:
        if fails_and_goes_on(disk, run, free, capfd):
            failed.append(free)
        assert outcome(disk / "run") == whole, f"{free} bytes free"
        said = capfd.readouterr()
        assert "Traceback" not in said.out + said.err
    assert len(failed) > len(rooms) // 4
    assert rooms[-1] not in failed


def test_a_disk_that_is_full_at_some_write_ends_the_run_with_a_word_and_loses_nothing(small_disk, run, capfd):
    scan(small_disk, run, capfd, small_step=32 << 10, large_steps=10)


@pytest.mark.slow
def test_a_disk_that_is_full_at_each_write_ends_the_run_with_a_word_and_loses_nothing(small_disk, run, capfd):
    scan(small_disk, run, capfd, small_step=4 << 10, large_steps=60)
