"""Freed memory is kept for what comes next, where the C library is glibc.

Else large tensors come from the system anew each time, page by page: half of a training step's time where pages are
dear (virtual machines that give free pages back: 400,000 page faults a step, 6 s; without them 2.7 s).
"""

__all__ = ["give_memory_back", "keep_freed_memory", "start_thread"]

import ctypes
import os
import platform
import queue
import threading
from collections.abc import Callable

# malloc.h's numbers: no mappings of their own for large blocks, one heap, and that heap is never cut back.
MMAP_MAX, ARENA_MAX, TRIM_THRESHOLD = -4, -8, -1
ENOUGH_THREADS = 64
"""More than glibc has heaps on machines of up to 8 cores; beyond it the thread takes what it gets."""


def keep_freed_memory() -> bool:
    """Have the C library keep what is freed; whether it does. Its environment, where that says something, rules."""
    is_ruled = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if is_ruled or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(option, value) for option, value in ((MMAP_MAX, 0), (ARENA_MAX, 1), (TRIM_THRESHOLD, -1)))


def give_memory_back() -> None:
    """Return what was kept so to the system."""
    ctypes.CDLL(None).malloc_trim(0)


def start_thread(run: Callable[[], None], name: str) -> threading.Thread:
    """Start a daemon thread that takes its memory from the main heap, once ``keep_freed_memory`` has said yes.

    Only that heap grows in one piece and keeps what is freed. Threads that were there before have heaps of their own,
    and a new one takes one of those in turn: so threads are started until one gets the main heap; the others end.
    """
    is_found = threading.Event()
    answers: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def candidate(is_last: bool) -> None:
        is_chosen = is_last or _is_on_main_heap()
        answers.put(is_chosen)
        if is_chosen:
            run()
        else:
            is_found.wait()  # an ended thread's heap would be the next one's

    k = 0
    while True:
        k += 1
        thread = threading.Thread(target=candidate, args=(k == ENOUGH_THREADS,), name=name, daemon=True)
        thread.start()
        if answers.get():
            is_found.set()
            return thread


def _is_on_main_heap() -> bool:
    """Whether this thread's memory comes from glibc's main heap: a bit in the word before each block says so."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.argtypes = (ctypes.c_void_p,)
    block = libc.malloc(5000)  # too large for the thread's own cache of blocks, which may be of any heap
    size = ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value
    libc.free(block)
    return not size & 4
