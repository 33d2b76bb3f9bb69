"""What is appended to the trace store comes back, also after the process was killed."""

import math
import multiprocessing
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllm.errors import TraceStoreError
from rllm.trace import TraceStore, assemble
from rllm.types import SCHEMA_VERSION, Episode, Failure, Reward, SamplingParams, Step, Task, Trajectory

int32 = st.integers(-(2**31), 2**31 - 1)
float32 = st.floats(width=32)
text = st.text(max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
messages = st.dictionaries(st.text(max_size=4), json_values, max_size=3)


@st.composite
def steps(draw: st.DrawFn, call_id: str = "c") -> Step:
    n = draw(st.integers(0, 6))
    return Step(
        call_id=call_id,
        choice=draw(st.integers(0, 3)),
        session_id=draw(text),
        index=draw(st.integers(0, 2**40)),
        parent=draw(st.none() | text),
        role=draw(text),
        span_id=draw(st.none() | text),
        added_messages=tuple(draw(st.lists(messages, max_size=2))),
        tools=tuple(draw(st.lists(messages, max_size=2))),
        added_ids=tuple(draw(st.lists(int32, max_size=6))),
        completion_ids=tuple(draw(st.lists(int32, min_size=n, max_size=n))),
        logprobs=tuple(draw(st.lists(float32, min_size=n, max_size=n))),
        versions=tuple(draw(st.lists(int32, min_size=n, max_size=n))),
        message=draw(st.none() | messages),
        status=draw(st.sampled_from(["ok", "error", "cancelled", "cut"])),
        error=draw(st.none() | text),
        sampling=SamplingParams(temperature=draw(st.floats(0, 5)), seed=draw(st.none() | st.integers())),
        overridden=tuple(draw(st.lists(text, max_size=2))),
        started_at=draw(st.floats(allow_nan=False)),
    )


def make(call_id: str, session_id: str = "s", index: int = 0, **fields: object) -> Step:
    return Step.model_validate({"call_id": call_id, "session_id": session_id, "index": index, **fields})


@given(steps())
def test_a_step_comes_back_exactly(step):
    with TraceStore(":memory:") as store:
        store.append(step)
        (read,) = store.steps(step.session_id)
    assert np.array_equal(
        np.array(read.logprobs, np.float32).view(np.int32), np.array(step.logprobs, np.float32).view(np.int32)
    )
    assert all(math.isnan(b) or a == b for a, b in zip(read.logprobs, step.logprobs, strict=True))
    assert read.model_dump(exclude={"logprobs"}) == step.model_dump(exclude={"logprobs"})


def test_a_logprob_is_kept_as_the_nearest_float32():
    with TraceStore(":memory:") as store:
        store.append(make("a", completion_ids=(1,), logprobs=(-0.1,), versions=(0,)))
        assert store.steps("s")[0].logprobs == (float(np.float32(-0.1)),)


@given(steps(), steps())
@settings(max_examples=50, deadline=None)
def test_an_amended_step_stands_in_the_place_of_the_first(before, after):
    after = after.model_copy(update={n: getattr(before, n) for n in ("call_id", "choice", "session_id", "index")})
    with TraceStore(":memory:") as store:
        other = before.model_copy(update={"call_id": "other"})
        store.append(before)
        store.append(other)
        store.amend(after)
        assert repr(store.steps(before.session_id)) == repr([after, other])


def test_a_step_that_was_never_appended_is_not_amended():
    with TraceStore(":memory:") as store, pytest.raises(TraceStoreError, match="append it first"):
        store.amend(make("c"))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=20))
@settings(max_examples=30)
def test_sessions_come_in_the_order_of_their_first_step_and_steps_in_that_of_their_calls(calls):
    with TraceStore(":memory:") as store:
        for number, (session, index) in enumerate(calls):
            store.append(make(str(number), session, index))
        assert store.sessions() == list(dict.fromkeys(session for session, _ in calls))
        for session in "abc":
            got = [(step.index, int(step.call_id)) for step in store.steps(session)]
            assert got == sorted((index, number) for number, (s, index) in enumerate(calls) if s == session)


def _episode(session_id: str, recorded: list[Step]) -> Episode:
    trajectories, side_steps = assemble(recorded)
    return Episode(
        id=session_id,
        task=Task(id="t", answer={"x": [1, None]}),
        trajectories=tuple(t.model_copy(update={"reward": 0.5}) for t in trajectories),
        side_steps=side_steps,
        output=["a", {"b": 1.5}],
        reward=Reward(value=math.inf, signals={"s": -math.inf}),
        failure=Failure(kind="timeout", message="m"),
    )


def _recorded(session_id: str) -> list[Step]:
    one = {"completion_ids": (7, 8), "logprobs": (-0.5, -1.25), "versions": (0, 0)}
    return [
        make("a", session_id, 0, **one, added_ids=(1, 2)),
        make("b", session_id, 1, **one, role="checker", span_id="x"),
        make("b", session_id, 1, **one, role="checker", span_id="x", choice=1),
        make("j", session_id, 2, route="judge"),
    ]


def test_an_episode_comes_back_with_its_steps(tmp_path):
    path = tmp_path / "traces.sqlite"
    written = [_episode(name, _recorded(name)) for name in ("s1", "s2")]
    with TraceStore(path) as store:
        for episode in written:
            for step in episode.steps:
                store.append(step)
            store.append_episode(episode)
        assert store.episodes() == written
    with TraceStore(path) as again:
        assert again.episodes() == written


def test_an_episode_does_not_keep_its_steps_tokens_again(tmp_path):
    long = make("a", "s", completion_ids=(5,) * 9999, logprobs=(-1.0,) * 9999, versions=(0,) * 9999, message={"x": "y"})
    with TraceStore(tmp_path / "t") as store:
        store.append(long)
        store.append_episode(Episode(id="s", trajectories=(Trajectory(steps=(long,)),)))
    with sqlite3.connect(tmp_path / "t") as raw:
        (size,) = raw.execute("SELECT LENGTH(record) FROM episodes").fetchone()
    raw.close()
    assert size < 1000


def test_a_session_grows_linearly_with_its_turns(tmp_path):
    sizes = []
    for turns in (100, 200):
        with TraceStore(tmp_path / str(turns)) as store:
            for turn in range(turns):
                parent = str(turn - 1) if turn else None
                store.append(make(str(turn), index=turn, parent=parent, added_ids=tuple(range(50))))
        sizes.append((tmp_path / str(turns)).stat().st_size)
    assert sizes[1] < 2.2 * sizes[0]


def test_what_was_appended_survives_the_death_of_the_process(tmp_path):
    code = """
import sys, time
from rllm.trace import TraceStore
from rllm.types import Step
store = TraceStore(sys.argv[1])
for i in range(50):
    store.append(Step(call_id=str(i), session_id="s", index=i))
    print(i, flush=True)
time.sleep(60)
"""
    path = tmp_path / "t"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "49":
                break
        process.send_signal(signal.SIGKILL)
        process.wait()
    with TraceStore(path) as store:
        assert [step.call_id for step in store.steps("s")] == [str(i) for i in range(50)]


def test_commits_are_synced_to_the_disk_through_a_write_ahead_log(tmp_path):
    with TraceStore(tmp_path / "t") as store:
        assert store._writer.execute("PRAGMA synchronous").fetchone() == (2,)
        assert store._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("name", [":memory:", "file"])
def test_threads_write_and_read_at_once(tmp_path, name):
    path = name if name == ":memory:" else tmp_path / name
    failures: list[BaseException] = []

    def work(function, *arguments):
        try:
            function(*arguments)
        except BaseException as error:
            failures.append(error)

    def write(store, session):
        for index in range(40):
            store.append(make(str(index), session, index))

    def read(store):
        for _ in range(40):
            for session in store.sessions():
                got = [step.index for step in store.steps(session)]
                assert got == list(range(len(got)))

    with TraceStore(path) as store:
        jobs = [threading.Thread(target=work, args=(write, store, f"s{i}")) for i in range(4)]
        jobs += [threading.Thread(target=work, args=(read, store)) for _ in range(2)]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        assert not failures
        assert {len(store.steps(f"s{i}")) for i in range(4)} == {40}


def _open_and_append(path: str, name: str) -> None:
    with TraceStore(path) as store:
        for index in range(10):
            store.append(make(str(index), name, index))


def test_several_processes_may_open_the_same_new_file(tmp_path):
    context = multiprocessing.get_context("spawn")
    jobs = [context.Process(target=_open_and_append, args=(str(tmp_path / "t"), f"p{i}")) for i in range(3)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert [job.exitcode for job in jobs] == [0, 0, 0]
    with TraceStore(tmp_path / "t") as store:
        assert sorted(store.sessions()) == ["p0", "p1", "p2"]


def test_the_version_stands_in_the_file_and_a_newer_one_is_refused(tmp_path):
    path = tmp_path / "t"
    TraceStore(path).close()
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    raw.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    raw.close()
    with pytest.raises(TraceStoreError, match=rf"{path}.* schema {SCHEMA_VERSION + 1}.* up to {SCHEMA_VERSION}"):
        TraceStore(path)


def test_a_file_that_is_no_store_is_named_and_left_alone(tmp_path):
    path = tmp_path / "notes"
    path.write_bytes(b"not a database at all, " * 100)
    with pytest.raises(TraceStoreError, match=str(path)):
        TraceStore(path)
    assert path.read_bytes() == b"not a database at all, " * 100


def test_a_database_of_somebody_else_is_named_and_left_alone(tmp_path):
    path = tmp_path / "theirs"
    raw = sqlite3.connect(path)
    raw.execute("CREATE TABLE theirs (x)")
    raw.commit()
    raw.close()
    before = path.read_bytes()
    with pytest.raises(TraceStoreError, match=f"{path} is a SQLite file, but no trace store"):
        TraceStore(path)
    assert path.read_bytes() == before


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "t"
    with TraceStore(path) as store:
        for index in range(200):
            store.append(make(str(index), index=index, added_ids=tuple(range(100))))
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(TraceStoreError, match=str(path)), TraceStore(path) as store:
        store.steps("s")


@pytest.mark.parametrize("column", ["record='{'", "added_ids=x'010203'", "logprobs=x'00000000'", "record='{}'"])
def test_a_damaged_step_is_named(tmp_path, column):
    path = tmp_path / "t"
    with TraceStore(path) as store:
        store.append(make("broken"))
    raw = sqlite3.connect(path)
    raw.execute(f"UPDATE steps SET {column}")
    raw.commit()
    raw.close()
    with TraceStore(path) as store, pytest.raises(TraceStoreError, match=f"{path} is damaged: step 'broken' of"):
        store.steps("s")


def test_a_step_that_does_not_fit_is_named(tmp_path):
    path = str(tmp_path / "t")
    with TraceStore(path) as store:
        for fields, message in (
            ({"added_ids": (2**31,)}, "added_ids holds a number beyond int32: 2147483648"),
            ({"completion_ids": (1,), "logprobs": (-1e300,), "versions": (0,)}, "beyond float32: -1e"),
            ({"message": {"x": b"bytes"}}, "no JSON"),
        ):
            with pytest.raises(TraceStoreError, match=f"'bad' can't be written to {path}.*{message}"):
                store.append(make("bad", **fields))
        assert store.sessions() == []


def test_what_was_written_before_is_not_written_again():
    with TraceStore(":memory:") as store:
        store.append(make("a"))
        store.append(make("a", "other"))
        store.append(make("a", choice=1))
        with pytest.raises(TraceStoreError, match="'a' of session 's' is in :memory: already"):
            store.append(make("a"))
        store.append_episode(Episode(id="e"))
        with pytest.raises(TraceStoreError, match="'e' is in :memory: already"):
            store.append_episode(Episode(id="e"))


def test_an_episode_whose_steps_are_not_there_is_refused():
    with TraceStore(":memory:") as store:
        with pytest.raises(TraceStoreError, match="its step 'a' of session 's' isn't there"):
            store.append_episode(Episode(id="e", side_steps=(make("a"),)))
        assert store.episodes() == []


def test_a_missing_folder_and_a_closed_store_are_said():
    path = Path("/nonexistent-folder") / "t"
    with pytest.raises(TraceStoreError, match=f"{path} can't be used"):
        TraceStore(path)
    store = TraceStore(":memory:")
    store.close()
    store.close()
    with pytest.raises(TraceStoreError, match="closed"):
        store.append(make("a"))
