"""What this machine has and is fast at: cores, bfloat16, memory."""

__all__ = ["bf16_gain", "cores", "give_memory_back", "keep_freed_memory", "onednn_gain", "saved_bytes", "total_memory"]

import ctypes
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import torch
from torch import Tensor
from torch.nn import functional as F

from rllm.backends.local.products import Multiply, by_onednn, by_torch

DECODE_ROWS = 64
"""Rows of the matrix product that precisions are compared by: those of a full decode step."""


def onednn_gain(width: int, *, repeats: int = 9) -> float:
    """How many times faster oneDNN multiplies float32 matrices than torch's own products; 0 where it is not there."""
    x, weight = torch.ones(DECODE_ROWS, width), torch.ones(4 * width, width)
    try:
        by_onednn(x, weight)
    except (AttributeError, NotImplementedError, RuntimeError):
        return 0.0
    return _ratio(lambda: by_torch(x, weight), lambda: by_onednn(x, weight), repeats)


def bf16_gain(width: int, multiply: Multiply = by_torch, *, repeats: int = 9) -> float:
    """How many times faster a CPU multiplies matrices in bfloat16 than in float32 (by ``multiply``).

    At the shape of a decode step through a model of this width; 2 and more with AVX-512-BF16 or AMX, a tenth where
    bfloat16 is emulated. The two take turns, so that a busy machine slows down both.
    """
    x, weight = torch.ones(DECODE_ROWS, width), torch.ones(4 * width, width)
    half, half_weight = x.to(torch.bfloat16), weight.to(torch.bfloat16)
    return _ratio(lambda: multiply(x, weight), lambda: F.linear(half, half_weight), repeats)


def _ratio(slow: Callable[[], object], fast: Callable[[], object], repeats: int) -> float:
    """The least time of one over the least time of the other, taken in turns."""
    times = [(_seconds(slow), _seconds(fast)) for _ in range(repeats)]
    return min(a for a, _ in times) / min(b for _, b in times)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> bool:
    """Have the C library keep what is freed for what comes next; whether it does.

    Else large tensors come from the system anew each time, page by page: in a training step a quarter of the time
    (measured: 330,000 page faults a step, 4.6 s; without them 3.7). For glibc, unless its environment says otherwise.
    """
    is_ruled = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if is_ruled or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # No mappings of their own for large blocks, one heap, and that heap is not cut back: malloc.h's numbers.
    return all(mallopt(option, value) for option, value in ((-4, 0), (-8, 1), (-1, 2**31 - 1)))


def give_memory_back() -> None:
    """Return what was kept so to the system."""
    ctypes.CDLL(None).malloc_trim(0)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def total_memory(device: torch.device) -> int:
    """Bytes of the device's memory, or of the machine's that this process may have.

    The whole, not what is free now: what is cut by it must come out the same in two runs.
    """
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    whole = int(psutil.virtual_memory().total)
    # What a container may have, where there are containers; elsewhere there is no such file.
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (allowed := limit.read_text().strip()).isdigit():
        return min(whole, int(allowed))
    return whole


def saved_bytes(run: Callable[[], object], weights: Sequence[Tensor]) -> int:
    """Bytes that a forward keeps for its backward, the weights not counted."""
    known = {weight.untyped_storage().data_ptr() for weight in weights}
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
