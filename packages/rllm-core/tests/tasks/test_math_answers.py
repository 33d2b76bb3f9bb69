"""Answers are compared in processes of their own: rightly, within the limit, and none waits for a hostile one."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rllm.tasks import math_answers
from rllm.tasks.math_answers import LONGEST, Verdict, last_boxed, same_answer
from rllm.tasks.math_task import grade_boxed
from rllm.types import Episode, Task

ENDLESS = "9^{9^{9^{9}}}"


def workers(parent: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(parent), "-f", "math_worker.py"], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


@pytest.fixture(scope="module", autouse=True)
def _workers_of_the_module():
    yield
    math_answers._pool.close()


@pytest.fixture
def short_limit(monkeypatch):
    """A second is enough for what ends at all."""
    pool = math_answers._Pool()
    monkeypatch.setattr(math_answers, "LIMIT_S", 1.0)
    monkeypatch.setattr(math_answers, "_pool", pool)
    yield
    pool.close()


@pytest.mark.parametrize(
    ("gold", "answer", "is_same"),
    [
        (r"\frac{3}{4}", "0.75", True),
        (r"\frac{1}{3}", "0.333333", False),
        (r"2\frac{1}{3}", r"\frac{7}{3}", True),
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}", False),
        ("2^{100}", "2^{100}+1", False),
        (r"50\%", "50", True),
        (r"\$1,250", r"1250\text{ dollars}", True),
        ("1,234", "1.234", False),
        (r"2\sqrt{3}", r"\sqrt{12}", True),
        (r"\pi", "3.14159", False),
        ("(x+1)^2", "x^2+2x+1", True),
        (r"\frac{x}{y}", r"\frac{y}{x}", False),
        ("[2,5)", "[2, 5)", True),
        ("(0,1)", "(0,1.5)", False),
        ("1,-2", "-2, 1", True),
        ("1,2,3", "1,2", False),
        ("(1,2)", "(2,1)", False),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1.0\\\frac{4}{2}\end{pmatrix}", True),
        (r"\text{even}", "even", True),
        ("x=5", "y=5", False),
        # What could be tried where the answer is not known.
        ("5", "4=6", False),
        ("5", r"4 \text{ or } 5", False),
        ("5", "1,2,3,4,5", False),
        ("5", "[0,100]", False),
        ("5", r"4\pm 1", False),
        ("5", "x", False),
        ("x=5", "x=x", False),
        ("5", r"\frac{0}{0}", False),
        ("5", "__import__('os').abort()", False),
    ],
)
def test_answers_are_compared(gold, answer, is_same):
    assert same_answer(gold, answer) == Verdict(is_same)


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"First \boxed{5}, but \boxed{7}.", "7"),
        (r"$\boxed{\boxed{\frac{1}{2}}}$", r"\frac{1}{2}"),
        (r"\fbox{8}", "8"),
        (r"$\boxed 5$.", "5"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{ 12. }", "12"),
        (r"\boxed{5} or \boxed{", None),
        ("5", None),
        (r"\boxed", None),
    ],
)
def test_the_last_box_holds_the_answer(text, boxed):
    assert last_boxed(text) == boxed


def test_thoughts_are_no_answer_and_an_empty_box_is_none():
    task = Task(id="1", answer="5")

    def value(output):
        return grade_boxed(task, Episode(output=output)).value

    assert value(r"<think>\boxed{4}?</think>\boxed{5}") == 1.0
    assert value(r"<think>\boxed{5}?</think>I can't say.") == 0.0
    assert value(r"<think>\boxed{5}") == 0.0
    assert value(r"\boxed{}") == value(None) == 0.0


HOSTILE = {
    "a tower of powers": ENDLESS,
    "a number of ten billion digits": "10^{10^{10}}",
    "an expansion": "(x+y+z+w)^{300}",
    "deep fractions": r"\frac{1}{" * 60 + "2" + "}" * 60,
    "deep parentheses": "(" * 300 + "1" + ")" * 300,
    "braces": "{" * 400,
    "dollars": "$" * 900,
    "backslashes": "\\" * 900,
}


def test_nothing_that_is_hostile_blocks_or_is_right(short_limit):
    answers = [*HOSTILE.values(), *(f"{n}.0" for n in range(1, 41))]
    golds = ["5"] * len(HOSTILE) + [str(n) for n in range(1, 41)]
    with ThreadPoolExecutor(len(answers)) as threads:
        verdicts = list(threads.map(same_answer, golds, answers))
    assert [v.is_same for v in verdicts] == [False] * len(HOSTILE) + [True] * 40
    assert verdicts[0].comment == "the answer could not be compared within 1 seconds"
    reward = grade_boxed(Task(id="1", answer="5"), Episode(output=rf"\boxed{{{ENDLESS}}}"))
    assert (reward.value, reward.signals["uncompared"], reward.comment) == (0.0, 1.0, verdicts[0].comment)
    assert not same_answer("5", "5" * (LONGEST + 1)).is_same


def test_a_worker_that_died_is_replaced(short_limit):
    """So that the answer that comes next is graded as ever."""
    assert same_answer("1", "1.0").is_same
    for pid in workers(os.getpid()):
        os.kill(pid, signal.SIGKILL)
    assert same_answer("1", "1.0").is_same


def test_a_question_that_kills_its_worker_twice_is_wrong(monkeypatch):
    pool = math_answers._Pool()
    monkeypatch.setattr(math_answers, "_pool", pool)
    first, second = math_answers._Worker(), math_answers._Worker()
    pool._idle = [second, first]
    with ThreadPoolExecutor(1) as threads:
        verdict = threads.submit(same_answer, "5", ENDLESS)
        for worker in (first, second):
            while worker in pool._idle:
                time.sleep(0.01)
            time.sleep(0.2)
            os.kill(worker._process.pid, signal.SIGSEGV)
    assert verdict.result() == Verdict(False, "the answer could not be compared: it ended the process, twice")


ORPHANS = """
import sys, threading, time
from rllm.tasks import math_answers

math_answers.LIMIT_S = 1.0
threading.Thread(target=math_answers.same_answer, args=("5", sys.argv[1]), daemon=True).start()
math_answers.same_answer("1", "1.0")
print("begun", flush=True)
time.sleep(60)
"""


def test_workers_end_with_a_process_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", ORPHANS, ENDLESS], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begun\n"
        started = workers(process.pid)
        process.kill()
    assert started
    deadline = time.monotonic() + 60
    while any(_lives(pid) for pid in started):
        assert time.monotonic() < deadline, "a worker outlives its process"
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True).stdout[:1] not in (b"Z", b"")
