"""Two workers, ours and a peer's, in processes of their own, run in turns; their medians and ratio.

A worker loads what it needs, says that it is ready, and does its work once for each line that it is sent. The one that
waits takes no processor time. The last line that a benchmark prints is one JSON object.
"""

import ctypes
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

# Read when torch is first imported: threads that spin for their next piece of work would slow the other worker down.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

RUNS = 5
MEMORY = "memory"
MARK = "##benchmark## "


def serve(run: Callable[[], dict[str, float] | None]) -> None:
    """A worker's side: one call of ``run`` for each line that comes in; it may return measurements of its own."""
    commands = Commands()
    while commands.wait():
        commands.answer(run)


class Commands:
    """For workers whose work is a loop that they don't own: ``wait``, work, ``report``."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print goes elsewhere
        self._is_ready = False
        self._command = ""

    def wait(self) -> bool:
        """Until the next run is due; False when there is none."""
        if not self._is_ready:
            self.report({})
            self._is_ready = True
        self._command = sys.stdin.readline().strip()
        return bool(self._command)

    def report(self, measured: dict[str, float]) -> None:
        self._out.write(MARK + json.dumps(measured) + "\n")
        self._out.flush()

    def answer(self, run: Callable[[], dict[str, float] | None]) -> None:
        """Run with the time measured, or, in a run of its own, the memory: a heap that is given back makes one slow."""
        if self._command == MEMORY:
            with PeakMemory() as memory:
                run()
            return self.report({"added_gb": memory.added / 1e9})
        start = time.perf_counter()
        more = run() or {}
        self.report({"seconds": time.perf_counter() - start, **more})


class PeakMemory:
    """The most resident memory over what there was at the start, looked at every 10 ms. Weights and optimizer state are
    there at the start, after earlier runs; what those have freed is given back to the system before."""

    def __enter__(self) -> "PeakMemory":
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        self._start = self._peak = self._now()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def added(self) -> int:
        return self._peak - self._start

    def _watch(self) -> None:
        while not self._done.wait(0.01):
            self._peak = max(self._peak, self._now())

    def _now(self) -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Worker:
    """A worker's process, seen from the benchmark."""

    def __init__(self, script: str, name: str, precision: str) -> None:
        self._name = name
        self._process = subprocess.Popen(
            [sys.executable, script, "--worker", name, "--precision", precision],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def run(self, command: str = "run") -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        raise SystemExit(f"the worker {self._name} ended with code {self._process.wait()}; its errors are above")


def compare(
    script: str, peer: str, settings: dict[str, object], *, bf16: tuple[str, ...] = ("bf16",), with_memory: bool = True
) -> None:
    """A benchmark's side; ``with_memory`` where its workers ``answer``. ``bf16``: what is run where the CPU has it.

    The command line may name precisions: ``python benchmarks/update.py fp32 bf16``.
    """
    flags = cpu_flags()
    precisions = sys.argv[1:] or ["fp32", *(bf16 if "avx512_bf16" in flags or "amx_bf16" in flags else ())]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, flags {' '.join(flags) or 'none'}")
    found = {precision: _compare(script, peer, precision, with_memory) for precision in precisions}
    print(json.dumps({"benchmark": os.path.basename(script), "peer": peer, "by_precision": found, "cpu_flags": flags,
                      "cores": os.cpu_count(), "runs": RUNS, "settings": settings}))  # fmt: skip


def _compare(script: str, peer: str, precision: str, with_memory: bool) -> dict[str, object]:
    workers = {name: Worker(script, name, precision) for name in ("ours", peer)}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
    for k in range(RUNS + 1):
        for name, worker in workers.items():
            measured = worker.run()
            print(
                f"{precision:12s} {name:14s} {'warm-up' if k == 0 else f'run {k}  '} {measured['seconds']:7.2f} s",
                flush=True,
            )
            runs[name].append(measured)
    added = {name: worker.run(MEMORY) for name, worker in workers.items()} if with_memory else {}
    for worker in workers.values():
        worker.close()
    ours, theirs = (
        {what: round(statistics.median(r[what] for r in runs[name][1:]), 3) for what in runs[name][1]}
        | {what: round(value, 3) for what, value in added.get(name, {}).items()}
        for name in ("ours", peer)
    )
    return {"ours": ours, "peer": theirs, "ratio": round(theirs["seconds"] / ours["seconds"], 2)}


def cpu_flags() -> list[str]:
    """Those that matrix products depend on."""
    try:
        with open("/proc/cpuinfo") as file:
            flags = next(line for line in file if line.startswith("flags")).split()
    except (OSError, StopIteration):
        return []
    return [f for f in ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16") if f in flags]
