"""The trace store: every recorded call and finished episode in one SQLite file, written before the agent is answered.

The gateway's thread writes while the loop, the viewer or another process reads.
"""

__all__ = ["StoreMark", "TraceStore"]

import contextlib
import sqlite3
import threading
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rllm.errors import TraceStoreError
from rllm.trace.records import StepRow, episode_from_json, episode_keys, episode_to_json, step_from_row, step_to_row
from rllm.types import SCHEMA_VERSION, Episode, Step

_APPLICATION_ID = 0x724C4C4D
"""Marks a SQLite file as ours ("rLLM")."""
_BUSY_TIMEOUT_S = 30.0

_TABLES = """
CREATE TABLE steps (
    session_id TEXT NOT NULL, key TEXT NOT NULL, idx INTEGER NOT NULL, choice INTEGER NOT NULL,
    added_ids BLOB NOT NULL, completion_ids BLOB NOT NULL, logprobs BLOB NOT NULL, versions BLOB NOT NULL,
    record TEXT NOT NULL,
    UNIQUE (session_id, key)
);
CREATE TABLE episodes (id TEXT NOT NULL UNIQUE, record TEXT NOT NULL);
"""
_STEP_COLUMNS = "session_id, key, idx, choice, added_ids, completion_ids, logprobs, versions, record"


@dataclass(frozen=True)
class StoreMark:
    """A moment in a trace store: its last step and episode then."""

    steps: int
    episodes: int


class TraceStore:
    """Steps and episodes in a SQLite file, or in memory where ``path`` is ``":memory:"``.

    WAL mode, so that readers never wait for the writer nor it for them, and ``synchronous=FULL``: when ``append``
    returns, the step survives the loss of the process and of power. NORMAL would be ten times faster but loses the
    last commits with the power; at under 1 ms a step on an SSD, and one step per model call, the promise is cheap.

    Every method may be called from any thread. All raise TraceStoreError, naming the file, where it can't be read or
    written, is damaged, is no trace store, or was written by a newer rLLM.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._lock = threading.Lock()
        self._writer = self._connect()
        try:
            with self._failures():
                self._open()
            # Readers have a connection of their own, so that reading a whole run doesn't hold up the gateway. A
            # database in memory belongs to its one connection.
            is_file = self.path != ":memory:"
            self._reader = self._connect() if is_file else self._writer
            self._reader_lock = threading.Lock() if is_file else self._lock
        except BaseException:
            self._writer.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a second time changes nothing."""
        with self._lock:
            self._writer.close()
        with self._reader_lock:
            self._reader.close()

    def append(self, step: Step) -> None:
        """Write one step; it is durable when this returns. A logprob is kept as the nearest float32.

        Raises TraceStoreError also where the step's key was written before in its session.
        """
        try:
            row = step_to_row(step)
        except ValueError as error:
            raise TraceStoreError(f"step {step.key!r} can't be written to {self.path}: {error}") from error
        with self._lock, self._failures():
            try:
                self._writer.execute(f"INSERT INTO steps ({_STEP_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?)", row)
            except sqlite3.IntegrityError as error:
                raise TraceStoreError(
                    f"step {step.key!r} of session {step.session_id!r} is in {self.path} already"
                ) from error

    def amend(self, step: Step) -> None:
        """Write a step again under its key, with what became of it since ``append``; durable when this returns.

        Raises TraceStoreError also where no such step was appended.
        """
        try:
            row = step_to_row(step)
        except ValueError as error:
            raise TraceStoreError(f"step {step.key!r} can't be written to {self.path}: {error}") from error
        with self._lock, self._failures():
            changed = self._writer.execute(
                f"UPDATE steps SET ({_STEP_COLUMNS}) = (?,?,?,?,?,?,?,?,?) WHERE session_id=? AND key=?",
                (*row, row.session_id, row.key),
            )
            if changed.rowcount == 0:
                raise TraceStoreError(
                    f"step {step.key!r} of session {step.session_id!r} is not in {self.path}: append it first"
                )

    def append_episode(self, episode: Episode) -> None:
        """Write an episode; it refers to its steps, which must have been appended. Durable when this returns.

        Raises TraceStoreError also where a step is missing from the store or the episode's id was written before.
        """
        try:
            record = episode_to_json(episode)
        except ValueError as error:
            raise TraceStoreError(f"episode {episode.id!r} can't be written to {self.path}: {error}") from error
        with self._lock, self._failures():
            for name in episode_keys(episode):
                if self._writer.execute("SELECT 1 FROM steps WHERE session_id=? AND key=?", name).fetchone() is None:
                    raise TraceStoreError(
                        f"episode {episode.id!r} can't be written to {self.path}: its step {name[1]!r} of session "
                        f"{name[0]!r} isn't there. Append the steps first."
                    )
            try:
                self._writer.execute("INSERT INTO episodes (id, record) VALUES (?,?)", (episode.id, record))
            except sqlite3.IntegrityError as error:
                raise TraceStoreError(f"episode {episode.id!r} is in {self.path} already") from error

    def mark(self) -> StoreMark:
        """What the store holds now, for ``rewind``."""
        (steps,), (episodes,) = self._read(
            "SELECT COALESCE(MAX(rowid), 0) FROM steps UNION ALL SELECT COALESCE(MAX(rowid), 0) FROM episodes"
        )
        return StoreMark(steps, episodes)

    def rewind(self, mark: StoreMark) -> None:
        """Forget what was written after ``mark``: it belongs to work that is done again."""
        with self._lock, self._failures():
            self._writer.execute("DELETE FROM episodes WHERE rowid > ?", (mark.episodes,))
            self._writer.execute("DELETE FROM steps WHERE rowid > ?", (mark.steps,))

    def sessions(self) -> list[str]:
        """The ids of all sessions with a step, in the order of their first."""
        rows = self._read("SELECT session_id FROM steps GROUP BY session_id ORDER BY MIN(rowid)")
        return [session_id for (session_id,) in rows]

    def steps(self, session_id: str) -> list[Step]:
        """The session's steps in the order in which their calls started; none where the session is unknown."""
        rows = self._read(
            f"SELECT {_STEP_COLUMNS} FROM steps WHERE session_id=? ORDER BY idx, choice, rowid", session_id
        )
        return [self._step(StepRow(*row)) for row in rows]

    def episodes(self, newest: int | None = None) -> list[Episode]:
        """All episodes, or the newest so many, in the order in which they were written, with their steps."""
        limit = -1 if newest is None else newest
        rows = self._read("SELECT id, record FROM episodes ORDER BY rowid DESC LIMIT ?", limit)
        return [self._episode(*row) for row in reversed(rows)]

    def _episode(self, episode_id: str, record: str) -> Episode:
        sessions: dict[str, dict[str, Step]] = {}

        def step_of(session_id: str, key: str) -> Step:
            if session_id not in sessions:
                sessions[session_id] = {step.key: step for step in self.steps(session_id)}
            return sessions[session_id][key]

        try:
            return episode_from_json(record, step_of)
        except (ValueError, KeyError, TypeError) as error:
            raise TraceStoreError(f"{self.path} is damaged: episode {episode_id!r} can't be read: {error}") from error

    def _step(self, row: StepRow) -> Step:
        try:
            return step_from_row(row)
        except (ValueError, TypeError) as error:
            raise TraceStoreError(
                f"{self.path} is damaged: step {row.key!r} of session {row.session_id!r} can't be read: {error}"
            ) from error

    def _read(self, query: str, *values: str | int) -> list[tuple[Any, ...]]:
        with self._reader_lock, self._failures():
            return self._reader.execute(query, values).fetchall()

    def _connect(self) -> sqlite3.Connection:
        with self._failures():
            # isolation_level=None: each statement is its own transaction, and none is opened behind our back.
            connection = sqlite3.connect(
                self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            return connection

    def _open(self) -> None:
        """Check that the file is ours and of a version that we can read; make the tables where it is new."""
        self._writer.execute("PRAGMA synchronous=FULL")
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            (application,) = self._writer.execute("PRAGMA application_id").fetchone()
            (version,) = self._writer.execute("PRAGMA user_version").fetchone()
            (tables,) = self._writer.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            if application == _APPLICATION_ID and version > SCHEMA_VERSION:
                raise TraceStoreError(
                    f"{self.path} was written with trace schema {version}, and this rLLM reads up to "
                    f"{SCHEMA_VERSION}. Update rllm-core to read it."
                )
            if application == 0 and tables == 0:
                for statement in _TABLES.split(";"):
                    self._writer.execute(statement)
                self._writer.execute(f"PRAGMA application_id={_APPLICATION_ID}")
                self._writer.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            elif application != _APPLICATION_ID:
                raise TraceStoreError(f"{self.path} is a SQLite file, but no trace store of rLLM. Give another path.")
        except BaseException:
            self._writer.execute("ROLLBACK")
            raise
        self._writer.execute("COMMIT")
        self._writer.execute("PRAGMA journal_mode=WAL")

    @contextlib.contextmanager
    def _failures(self) -> Generator[None]:
        """SQLite's errors as ours, naming the file."""
        try:
            yield
        except sqlite3.Error as error:
            raise TraceStoreError(
                f"the trace store {self.path} can't be used: {error}. If the file is damaged, move it away; if its "
                "disk is full or its folder missing or read-only, mend that."
            ) from error
