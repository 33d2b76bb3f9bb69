"""What this machine has and is fast at: cores, bfloat16, memory."""

__all__ = ["bf16_gain", "cores", "is_even", "onednn_gain", "saved_bytes", "total_memory"]

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import torch
from torch import Tensor
from torch.nn import functional as F

from rllm.backends.local.arithmetic import ROWS
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


@torch.no_grad()
def is_even(multiply: Multiply, weights: Sequence[Tensor]) -> bool:
    """Whether a row of x wᵀ has the same bits however many rows x has, in multiples of ``ROWS``.

    Tried, for each of ``weights`` (float32[N, K], the first thousands of N). oneDNN's and, on AMD's processors, MKL's
    have; MKL on Intel's takes other kernels for fewer rows.
    """
    generator = torch.Generator().manual_seed(0)
    for weight in weights:
        part = weight[:4096]
        x = torch.randn(16 * ROWS, part.shape[1], generator=generator)
        whole = multiply(x, part)
        if not all(torch.equal(multiply(x[: n * ROWS], part), whole[: n * ROWS]) for n in (1, 2, 3, 5, 9)):
            return False
    return True


def _ratio(slow: Callable[[], object], fast: Callable[[], object], repeats: int) -> float:
    """The least time of one over the least time of the other, taken in turns."""
    times = [(_seconds(slow), _seconds(fast)) for _ in range(repeats)]
    return min(a for a, _ in times) / min(b for _, b in times)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
