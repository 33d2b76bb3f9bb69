"""The session and span go with the agent into its own threads and pools, and stay nowhere else."""

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import pytest

from rllm.trace import (
    Session,
    as_role,
    carry_context,
    current_session,
    current_span,
    no_session,
    use_session,
)
from rllm.trace.session import is_marked_outside


def _session(name: str) -> Session:
    return Session(id=name, base_url=f"http://127.0.0.1:1/sessions/{name}/v1", api_key="k")


def _where() -> tuple[str | None, str | None]:
    session, span = current_session(), current_span()
    return session and session.id, span and span.role


def _in_thread(function=_where, make=threading.Thread):
    found = []
    thread = make(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def _patched() -> list[dict[str, object]]:
    return [dict(vars(c)) for c in (threading.Thread, ThreadPoolExecutor, ThreadPool)]


def test_threads_and_pools_of_the_agent_have_its_session_and_span():
    with carry_context(), use_session(_session("a")), as_role("solver"):
        here = ("a", "solver")
        assert _in_thread() == here
        assert _in_thread(lambda: _in_thread()) == here
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(_where).result() == here
            assert list(pool.map(lambda _: _where(), range(2))) == [here, here]
        with ThreadPool(2) as pool:
            assert pool.apply(_where) == here
            assert pool.map(func=lambda _: _where(), iterable=range(2)) == [here, here]
            assert pool.starmap(lambda *_: _where(), [(1, 2)]) == [here]
            assert list(pool.imap_unordered(lambda _: _where(), range(2))) == [here, here]
            assert pool.apply_async(_where, callback=lambda _: None).get() == here


async def test_run_in_executor_and_to_thread_have_the_session():
    with carry_context(), use_session(_session("a")):
        assert await asyncio.get_running_loop().run_in_executor(None, _where) == ("a", None)
        assert await asyncio.to_thread(_where) == ("a", None)


def test_a_timer_and_a_subclass_that_overrides_run_have_the_session():
    found = []

    class Mine(threading.Thread):
        def run(self) -> None:
            found.append(_where())
            super().run()

    with carry_context(), use_session(_session("a")):
        mine = Mine(target=lambda: found.append(_where()))
        mine.start()
        timer = threading.Timer(0, lambda: found.append(_where()))
        timer.start()
        mine.join()
        timer.join()
    assert found == [("a", None)] * 3
    assert "run" not in vars(mine)


def test_a_session_starts_outside_every_span():
    with use_session(_session("a")), as_role("outer"):
        with use_session(_session("b")):
            assert _where() == ("b", None)
        assert _where() == ("a", "outer")


def test_a_thread_keeps_the_span_of_its_start():
    go, found = threading.Event(), []
    with carry_context(), use_session(_session("a")):
        with as_role("first"):
            thread = threading.Thread(target=lambda: (go.wait(5), found.append(_where())))
            thread.start()
        with as_role("second"):
            go.set()
            thread.join()
    assert found == [("a", "first")]


@pytest.mark.parametrize("make_pool", [ThreadPoolExecutor, ThreadPool])
def test_a_pools_worker_started_in_one_session_does_not_take_it_to_the_next_job(make_pool):
    def run(pool, function):
        return pool.submit(function).result() if isinstance(pool, ThreadPoolExecutor) else pool.apply(function)

    with carry_context():
        with use_session(_session("a")):
            pool = make_pool(1)
            assert run(pool, _where) == ("a", None)
        assert run(pool, _where) == (None, None)
        with use_session(_session("b")):
            assert run(pool, _where) == ("b", None)
        with pool:
            assert run(pool, _where) == (None, None)


def test_a_job_that_raises_leaves_the_worker_clean():
    with carry_context(), ThreadPoolExecutor(1) as pool:
        with use_session(_session("a")), pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 / 0).result()
        assert pool.submit(_where).result() == (None, None)


def test_the_mark_of_no_session_is_carried_too():
    with carry_context(), use_session(_session("a")), no_session():
        assert _in_thread(is_marked_outside)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(is_marked_outside).result()


def test_only_our_variables_are_carried():
    theirs = contextvars.ContextVar("theirs", default="empty")
    theirs.set("set")
    with carry_context(), use_session(_session("a")):
        assert _in_thread(theirs.get) == "empty"


def test_without_a_session_nothing_changes():
    with carry_context():
        thread = threading.Thread(target=_where)
        thread.start()
        assert "run" not in vars(thread)
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(_where).result() == (None, None)


def test_the_methods_are_restored_when_the_last_one_leaves():
    before = _patched()
    with carry_context():
        during = _patched()
        assert during != before
        with carry_context():
            assert _patched() == during
        assert _patched() == during
    assert _patched() == before
    with use_session(_session("a")):
        assert _in_thread() == (None, None)


def test_a_thread_that_can_not_start_is_left_as_it_was():
    with carry_context(), use_session(_session("a")):
        thread = threading.Thread(target=_where)
        thread.start()
        thread.join()
        with pytest.raises(RuntimeError, match="only be started once"):
            thread.start()
        assert "run" not in vars(thread)
