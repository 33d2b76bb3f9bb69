"""Grading: what is passed and returned, and that an evaluator can neither hang nor end what calls it."""

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from contextvars import ContextVar

import pytest

from rllm.errors import EvaluatorError
from rllm.reward import evaluator, grade
from rllm.trace import Session, current_session, use_session
from rllm.trace.session import is_marked_outside
from rllm.types import Episode, Reward, Task

TASK = Task(id="q7", prompt="2 + 2?", answer="4")
EPISODE = Episode(task=TASK, output="4")


class OddTimeout(BaseException):
    """As some libraries' time limits are: no Exception, so that a bare ``except Exception`` misses it."""


@pytest.fixture
def released():
    """Lets evaluators hang until the test is over."""
    event = threading.Event()
    yield event
    event.set()


def plain(task, episode):
    return episode.output == task.answer


async def awaited(task, episode):
    await asyncio.sleep(0)
    return episode.output == task.answer


def hands_on(task, episode):
    return awaited(task, episode)


class Grader:
    def __call__(self, task, episode):
        return episode.output == task.answer


class AsyncGrader:
    async def __call__(self, task, episode):
        return episode.output == task.answer


@pytest.mark.parametrize(
    "function", [plain, awaited, hands_on, Grader(), AsyncGrader(), evaluator(plain), evaluator(name="x")(awaited)]
)
async def test_every_kind_of_callable_grades(function):
    assert await grade(function, TASK, EPISODE, timeout_s=10) == Reward(value=1.0, is_correct=True)


async def test_no_grade_is_no_grade():
    assert await grade(lambda task, episode: None, TASK, EPISODE, timeout_s=10) is None


ERRORS = [ValueError("bad luck"), KeyError("k"), StopIteration("s"), OddTimeout("late"), SystemExit(3), MemoryError()]


@pytest.mark.parametrize("raised", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("is_async", [False, True])
async def test_what_it_raises_is_an_evaluator_error_with_the_cause_and_its_line(raised, is_async):
    def broken(task, episode):
        raise raised

    async def broken_later(task, episode):
        await asyncio.sleep(0)
        raise raised

    with pytest.raises(EvaluatorError) as caught:
        await grade(broken_later if is_async else broken, TASK, EPISODE, timeout_s=10)
    name = "broken_later" if is_async else "broken"
    message = f"the evaluator '{name}' raised {type(raised).__name__} for task 'q7'"
    cause = caught.value.__cause__
    if isinstance(raised, StopIteration) and is_async:
        # Python itself turns it into a RuntimeError when it leaves a coroutine (PEP 479).
        message, cause = f"the evaluator '{name}' raised RuntimeError for task 'q7'", cause.__cause__
    assert str(caught.value).startswith(message)
    assert cause is raised
    assert "raise raised" in "".join(traceback.format_exception(caught.value.__cause__))


async def test_a_cancellation_of_its_own_is_an_error_and_not_the_callers():
    async def cancels(task, episode):
        raise asyncio.CancelledError

    def cancels_in_a_thread(task, episode):
        raise asyncio.CancelledError

    for function in (cancels, cancels_in_a_thread):
        with pytest.raises(EvaluatorError, match="for task 'q7'"):
            await grade(function, TASK, EPISODE, timeout_s=10)


@pytest.mark.parametrize("returned", [float("nan"), "yes", (1, 2, 3), [True]])
async def test_what_is_no_reward_names_the_evaluator_the_task_and_what_is_accepted(returned):
    @evaluator(name="strict")
    def function(task, episode):
        return returned

    with pytest.raises(EvaluatorError, match=r"^the evaluator 'strict' returned .* for task 'q7': .*Return a bool"):
        await grade(function, TASK, EPISODE, timeout_s=10)


# --- hanging


async def test_a_hanging_function_is_given_up_and_the_loop_goes_on(released):
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    with pytest.raises(EvaluatorError, match=r"did not end within 0.3 seconds for task 'q7'.*can't be ended"):
        await grade(lambda task, episode: released.wait(), TASK, EPISODE, timeout_s=0.3)
    ticking.cancel()
    assert ticks > 3


async def test_a_hanging_coroutine_is_cancelled():
    seen = []

    async def hangs(task, episode):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    with pytest.raises(EvaluatorError, match=r"did not end within 0.1 seconds"):
        await grade(hangs, TASK, EPISODE, timeout_s=0.1)
    await asyncio.sleep(0)
    assert seen == ["cancelled"]


async def test_the_limit_counts_both_parts_of_a_function_that_hands_on_a_coroutine():
    def hangs(task, episode):
        return asyncio.Event().wait()

    with pytest.raises(EvaluatorError, match=r"did not end within 0.1 seconds"):
        await grade(hangs, TASK, EPISODE, timeout_s=0.1)


async def test_many_that_hang_leave_room_for_those_that_do_not(released):
    """areal 1426: ten hanging answers in a small pool, and the good ones behind them were never graded."""
    hanging = [
        asyncio.create_task(grade(lambda t, e: released.wait(), TASK, EPISODE, timeout_s=30)) for _ in range(100)
    ]
    await asyncio.sleep(0)
    good = await asyncio.gather(*(grade(plain, TASK, EPISODE, timeout_s=30) for _ in range(20)))
    assert all(reward.value == 1.0 for reward in good)
    assert not any(task.done() for task in hanging)
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)


async def test_a_cancelled_grading_cancels_the_evaluator():
    started, ended = asyncio.Event(), asyncio.Event()

    async def hangs(task, episode):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    grading = asyncio.create_task(grade(hangs, TASK, EPISODE, timeout_s=30))
    await started.wait()
    grading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await grading
    await asyncio.wait_for(ended.wait(), 10)


def test_a_hanging_evaluator_does_not_keep_the_process():
    script = textwrap.dedent("""
        import asyncio, time
        from rllm.errors import EvaluatorError
        from rllm.reward import grade
        from rllm.types import Episode, Task

        async def main():
            try:
                await grade(lambda task, episode: time.sleep(3600), Task(id="1"), Episode(), timeout_s=0.1)
            except EvaluatorError:
                print("given up")

        asyncio.run(main())
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "given up\n", "")


# --- the context


@pytest.mark.parametrize("is_async", [False, True])
async def test_it_runs_in_a_copy_of_the_context_and_outside_the_session(is_async):
    variable = ContextVar("variable", default="unset")
    variable.set("outer")
    seen = []

    def look(task, episode):
        seen.append((variable.get(), current_session(), is_marked_outside()))
        variable.set("inner")
        return 1

    async def look_later(task, episode):
        return look(task, episode)

    session = Session(id="s", base_url="http://127.0.0.1:1/v1", api_key="k")
    with use_session(session):
        await grade(look_later if is_async else look, TASK, EPISODE, timeout_s=10)
        assert current_session() is session
    assert seen == [("outer", None, True)]
    assert variable.get() == "outer"


async def test_plain_functions_run_beside_each_other():
    together = threading.Barrier(8, timeout=20)

    def meets(task, episode):
        together.wait()
        return 1

    rewards = await asyncio.gather(*(grade(meets, TASK, EPISODE, timeout_s=30) for _ in range(8)))
    assert [r.value for r in rewards] == [1.0] * 8


async def test_time_before_it_starts_does_not_count(released):
    """verifiers 831: the wait in a queue counted, so right answers got 0 in bursts."""
    rewards = await asyncio.gather(
        *(grade(lambda t, e: time.sleep(0.01) or 1, TASK, EPISODE, timeout_s=20) for _ in range(300))
    )
    assert all(r.value == 1.0 for r in rewards)
