"""What this machine is good at, measured when the engine starts: threads, bfloat16, and how much fits in its memory."""

__all__ = ["bf16_gain", "fastest_threads", "saved_bytes", "total_memory"]

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

DECODE_ROWS = 64
"""Rows of the matrix product that precisions are compared by: those of a full decode step."""


def bf16_gain(width: int, *, repeats: int = 5) -> float:
    """How many times faster a CPU multiplies matrices in bfloat16 than in float32.

    At the shape of a decode step through a model of this width; 2 and more with AVX-512-BF16 or AMX, below 1 where
    bfloat16 is emulated.
    """
    x, weight = torch.ones(DECODE_ROWS, width), torch.ones(4 * width, width)
    half, half_weight = x.to(torch.bfloat16), weight.to(torch.bfloat16)
    return _seconds(lambda: F.linear(x, weight), repeats) / _seconds(lambda: F.linear(half, half_weight), repeats)


def fastest_threads(run: Callable[[], object], *, repeats: int = 3) -> int:
    """The number of threads with which ``run`` takes least time: one, half the cores, or all; left set."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    seconds: dict[int, float] = {}
    for threads in sorted({1, max(1, cores // 2), cores}):
        torch.set_num_threads(threads)
        seconds[threads] = _seconds(run, repeats)
    best = min(seconds, key=seconds.__getitem__)
    torch.set_num_threads(best)
    return best


def _seconds(run: Callable[[], object], repeats: int) -> float:
    """The best of some runs: what disturbs one only ever makes it slower."""
    run()
    taken: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return min(taken)


def total_memory(device: torch.device) -> int:
    """Bytes of the device's memory, or of the machine's that this process may have.

    The whole, not what is free now: what is cut by it must come out the same in two runs.
    """
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (allowed := limit.read_text().strip()).isdigit():
        return min(whole, int(allowed))
    return whole


def saved_bytes(run: Callable[[], object], parameters: list[torch.nn.Parameter]) -> int:
    """Bytes that a forward keeps for its backward, the parameters not counted."""
    known = {p.untyped_storage().data_ptr() for p in parameters}
    found: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        kept = run()  # the graph must live while it is counted, or a later tensor takes an earlier one's place
    del kept
    return sum(found.values())
