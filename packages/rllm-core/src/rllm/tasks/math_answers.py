"""Whether two mathematical answers are the same, asked of math-verify in processes of its own.

Its parser and sympy can take for ever, or all the memory, on a line that a model wrote, and their time limits are
signals, which only a main thread gets. So each comparison runs in one of a few worker processes, which is killed where
it takes too long; the clock starts when a worker begins, not in the queue. ``multiprocessing``, and the pools that are
built on it, would run the user's own script again in each worker; so these are started by their file, and spoken to in
lines of JSON.
"""

from __future__ import annotations

__all__ = ["Verdict", "last_boxed", "same_answer"]

import atexit
import importlib.util
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from rllm.errors import EvaluatorError, TaskError

LIMIT_S = 5.0
"""Of one comparison."""
START_S = 60.0
"""Of a worker, to import sympy on a busy machine."""
LONGEST = 1_000
"""Characters of an answer that is compared; the longest of MATH has some 200."""
MEMORY_BYTES = 2 << 30
WORKERS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class Verdict:
    """What a comparison came to."""

    is_same: bool
    comment: str = ""
    """Why there is no real answer to the question: a limit, an error, a worker that died."""


def same_answer(gold: str, answer: str) -> Verdict:
    """Whether ``answer`` (LaTeX, what stands in the box) is the answer ``gold``; ``gold`` is trusted.

    An answer that can't be compared within LIMIT_S seconds and MEMORY_BYTES is not the same, with a comment. Safe to
    call from many threads. Raises EvaluatorError where no worker can be started.
    """
    if _spaceless(gold) == _spaceless(answer):
        return Verdict(True)
    if len(answer) > LONGEST:
        return Verdict(False, f"the answer has {len(answer)} characters; up to {LONGEST} are compared")
    return _pool.compare(gold, answer)


def check_math_verify(task: str) -> None:
    """Raises TaskError that names the extra where math-verify is not installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise TaskError(f'the task {task!r} needs math-verify. Install it with: pip install "rllm-core[math]"')


def _spaceless(text: str) -> str:
    return "".join(text.split())


def last_boxed(text: str) -> str | None:
    r"""What stands in the last ``\boxed{…}`` (or ``\fbox``) of a text; None without one, or if it has no end.

    >>> last_boxed(r"First \boxed{5}, no: $\boxed{\frac{1}{2}}$."), last_boxed(r"\boxed{12"), last_boxed("12")
    ('\\frac{1}{2}', None, None)
    """
    start = max(text.rfind(r"\boxed"), text.rfind(r"\fbox"))
    if start < 0:
        return None
    rest = text[start:].removeprefix(r"\boxed").removeprefix(r"\fbox").lstrip()
    if not rest.startswith("{"):  # \boxed 5, as some of MATH's solutions write
        found = rest.partition("$")[0].split()
        return found[0] if found else None
    depth = position = 0
    while position < len(rest):
        character = rest[position]
        if character == "\\":
            position += 1  # what follows is escaped: \{ opens nothing
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return rest[1:position].strip().removesuffix(".")
        position += 1
    return None


class _Worker:
    """One process, and one question at a time."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("math_worker.py")
        # -P keeps this folder off its path. In a session of its own, Ctrl-C reaches only us; without us its input ends,
        # and so does it.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script), str(LIMIT_S), str(MEMORY_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._read(START_S) != b"ready":
            self.end()
            raise EvaluatorError(
                f"a process for comparing answers did not start (exit {self._process.returncode}). "
                f"Look why with: {sys.executable} -P {script} 5 {MEMORY_BYTES}"
            )

    def ask(self, gold: str, answer: str) -> Verdict | None:
        """None where the process died."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([gold, answer]).encode() + b"\n")
            self._process.stdin.flush()
            reply = self._read(LIMIT_S)
        except TimeoutError:
            return Verdict(False, f"the answer could not be compared within {LIMIT_S:g} seconds")
        except OSError:
            return None
        if reply is None:
            return None
        if reply not in (b"same", b"other"):
            return Verdict(False, f"the answer could not be compared: {reply.decode()}")
        return Verdict(reply == b"same")

    def _read(self, limit_s: float) -> bytes | None:
        """A line; None where the process has ended. Raises TimeoutError."""
        assert self._process.stdout is not None
        deadline, line = time.monotonic() + limit_s, b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                part = os.read(self._process.stdout.fileno(), 1 << 16)
                if not part:
                    return None
                line += part
        return line.strip()

    def lives(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """At once, whatever it does."""
        self._process.kill()
        self._process.communicate()


class _Pool:
    """Up to WORKERS processes, started when they are needed."""

    def __init__(self) -> None:
        self._room = threading.BoundedSemaphore(WORKERS)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []

    def compare(self, gold: str, answer: str) -> Verdict:
        with self._room:
            # A death may be another's doing (the machine was short of memory), so it is tried once more.
            for _ in range(2):
                verdict = self._ask(gold, answer)
                if verdict is not None:
                    return verdict
            return Verdict(False, "the answer could not be compared: it ended the process, twice")

    def _ask(self, gold: str, answer: str) -> Verdict | None:
        worker = self._take() or _Worker()
        verdict = None
        try:
            verdict = worker.ask(gold, answer)
        finally:
            if verdict is None or verdict.comment:
                worker.end()
            else:
                with self._lock:
                    self._idle.append(worker)
        return verdict

    def _take(self) -> _Worker | None:
        """An idle one that lives."""
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.lives():
                    return worker
        return None

    def close(self) -> None:
        """End those that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.end()


_pool = _Pool()
atexit.register(lambda: _pool.close())


def _forget() -> None:
    """In a fork the workers are still the parent's."""
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forget)
