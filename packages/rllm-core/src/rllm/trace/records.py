"""How steps and episodes stand in the store's tables: token arrays as compact blobs, the rest as JSON.

int32 and float32, little endian. JSON is Python's own with escapes, so that NaN, infinity and what broken clients send
as text (lone surrogates) come back as they went in.
"""

__all__ = ["StepRow", "episode_from_json", "episode_keys", "episode_to_json", "step_from_row", "step_to_row"]

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rllm.types import Episode, Step

StepName = tuple[str, str]
"""A step's session id and key."""

_IDS = np.dtype("<i4")
_LOGPROBS = np.dtype("<f4")
_ARRAYS = ("added_ids", "completion_ids", "logprobs", "versions")
_PLACES = ("session_id", "index", "choice")


class StepRow(NamedTuple):
    """One row of the table ``steps``."""

    session_id: str
    key: str
    idx: int
    choice: int
    added_ids: bytes
    completion_ids: bytes
    logprobs: bytes
    versions: bytes
    record: str
    """JSON of all other fields."""


def step_to_row(step: Step) -> StepRow:
    """Raises ValueError where a value doesn't fit: an id beyond int32, a logprob beyond float32, a non-JSON message."""
    try:
        record = json.dumps(step.model_dump(exclude={*_ARRAYS, *_PLACES}))
    except TypeError as error:
        raise ValueError(f"it holds a value that is no JSON: {error}") from error
    return StepRow(
        step.session_id,
        step.key,
        step.index,
        step.choice,
        _pack_ids("added_ids", step.added_ids),
        _pack_ids("completion_ids", step.completion_ids),
        _pack_logprobs(step.logprobs),
        _pack_ids("versions", step.versions),
        record,
    )


def step_from_row(row: StepRow) -> Step:
    """The step as it was written, its logprobs as float32 values. Raises ValueError where the row is damaged."""
    fields: dict[str, Any] = json.loads(row.record)
    return Step.model_validate(
        {
            **fields,
            "session_id": row.session_id,
            "index": row.idx,
            "choice": row.choice,
            "added_ids": np.frombuffer(row.added_ids, _IDS).tolist(),
            "completion_ids": np.frombuffer(row.completion_ids, _IDS).tolist(),
            "logprobs": np.frombuffer(row.logprobs, _LOGPROBS).tolist(),
            "versions": np.frombuffer(row.versions, _IDS).tolist(),
        }
    )


def episode_keys(episode: Episode) -> list[StepName]:
    """The steps that an episode is made of."""
    return [(step.session_id, step.key) for step in episode.steps]


def episode_to_json(episode: Episode) -> str:
    """The episode with each step replaced by its name. Raises ValueError where it holds what is no JSON."""
    fields = episode.model_dump(exclude={"trajectories": {"__all__": {"steps"}}, "side_steps": True})
    for record, trajectory in zip(fields["trajectories"], episode.trajectories, strict=True):
        record["steps"] = [(step.session_id, step.key) for step in trajectory.steps]
    fields["side_steps"] = [(step.session_id, step.key) for step in episode.side_steps]
    try:
        return json.dumps(fields)
    except TypeError as error:
        raise ValueError(f"it holds a value that is no JSON: {error}") from error


def episode_from_json(text: str, step_of: Callable[[str, str], Step]) -> Episode:
    """The episode put together again; ``step_of(session_id, key)`` finds a step, or raises."""
    fields: dict[str, Any] = json.loads(text)
    for trajectory in fields["trajectories"]:
        trajectory["steps"] = [step_of(session_id, key) for session_id, key in trajectory["steps"]]
    fields["side_steps"] = [step_of(session_id, key) for session_id, key in fields["side_steps"]]
    return Episode.model_validate(fields)


def _pack_ids(name: str, values: Sequence[int]) -> bytes:
    try:
        return np.array(values, dtype=_IDS).tobytes()
    except OverflowError as error:
        raise ValueError(f"{name} holds a number beyond int32: {max(values, key=abs)}") from error


def _pack_logprobs(values: Sequence[float]) -> bytes:
    limit = float(np.finfo(_LOGPROBS).max)
    for value in values:
        if math.isfinite(value) and abs(value) > limit:
            raise ValueError(f"logprobs holds a number beyond float32: {value}")
    return np.array(values, dtype=_LOGPROBS).tobytes()
