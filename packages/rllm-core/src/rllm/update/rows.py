"""A trajectory's steps into training rows, by exact prefixes.

    steps (each a delta to its parent's stream) ──▶ token tree ──▶ one row for each leaf

An unedited conversation of k turns is one path of the tree, so one row. Where the history was edited or the template
would not be continued, the recorder began a new stream, and here that is a new row. Nothing is ever tokenised again:
the ids of a row are those that the policy read and drew.
"""

__all__ = ["RowCounts", "trajectory_to_rows"]

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rllm.advantage import untrainable_reason
from rllm.errors import TraceStoreError
from rllm.types import Row, RowMeta, Step, Trajectory


def _none() -> Counter[str]:
    return Counter()


@dataclass(frozen=True)
class RowCounts:
    """What became of some trajectories' steps."""

    trajectories: int = 0
    rows: int = 0
    target_tokens: int = 0
    prefix_breaks: Counter[str] = field(default_factory=_none)
    """``Step.break_reason`` → steps whose prompt was rendered anew."""
    untrainable_steps: Counter[str] = field(default_factory=_none)
    """``untrainable_reason`` → steps none of whose tokens became a target."""

    def __add__(self, other: "RowCounts") -> "RowCounts":
        return RowCounts(
            self.trajectories + other.trajectories,
            self.rows + other.rows,
            self.target_tokens + other.target_tokens,
            self.prefix_breaks + other.prefix_breaks,
            self.untrainable_steps + other.untrainable_steps,
        )


def trajectory_to_rows(
    trajectory: Trajectory,
    advantage: float,
    by_key: Mapping[str, Step],
    *,
    temperature: float,
    task_id: str = "",
    sample: int = 0,
) -> tuple[list[Row], RowCounts]:
    """The rows of one trajectory. Every trainable sampled token of it is a target in exactly one of them.

    ``by_key`` holds every step of the episode by ``Step.key``: a prompt may continue the stream of another role's
    step, which is context then, as is a step that ``untrainable_reason`` names. Where two rows share targets (the
    conversation forked), they are targets in the row whose tokens come first in lexicographic order and context in
    the others; rows are in that order too, so that nothing depends on which call came first.

    >>> first = Step(call_id="a", session_id="s", index=0, added_ids=(1, 2), completion_ids=(3,), logprobs=(-0.5,),
    ...              versions=(0,))
    >>> second = Step(call_id="b", session_id="s", index=1, parent="a", added_ids=(4,), completion_ids=(5, 6),
    ...               logprobs=(-0.25, -1.0), versions=(0, 0))
    >>> both = Trajectory(steps=(first, second))
    >>> [row], counts = trajectory_to_rows(both, 2.0, {"a": first, "b": second}, temperature=1.0)
    >>> row.tokens.tolist(), row.mask.tolist()
    ([1, 2, 3, 4, 5, 6], [0.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    >>> row.logprobs.tolist(), row.advantages.tolist(), row.versions.tolist()
    ([0.0, 0.0, -0.5, 0.0, -0.25, -1.0], [0.0, 0.0, 2.0, 0.0, 2.0, 2.0], [-1, -1, 0, -1, 0, 0])

    Raises TraceStoreError where a step's parent is not in ``by_key`` or did not start before it.
    """
    reasons = {step.key: untrainable_reason(step, temperature) for step in trajectory.steps}
    trainable = [step for step in trajectory.steps if reasons[step.key] is None]
    unclaimed = {step.key for step in trainable}
    rows: list[Row] = []
    for path in sorted((_path(leaf, by_key) for leaf in _leaves(trainable, by_key)), key=_order):
        targets = [step.key for step in path if step.key in unclaimed]
        unclaimed.difference_update(targets)
        meta = RowMeta(task_id=task_id, sample=sample, role=trajectory.role, call_ids=tuple(targets))
        rows.append(_row(path, advantage, temperature, meta))
    counts = RowCounts(
        trajectories=1,
        rows=len(rows),
        target_tokens=sum(row.n_targets for row in rows),
        prefix_breaks=Counter(step.break_reason for step in trajectory.steps if step.break_reason is not None),
        untrainable_steps=Counter(reason for reason in reasons.values() if reason is not None),
    )
    return rows, counts


def _parent(step: Step, by_key: Mapping[str, Step]) -> Step | None:
    if step.parent is None:
        return None
    parent = by_key.get(step.parent)
    if parent is None or parent.index >= step.index:
        what = "is not among the episode's steps" if parent is None else "did not start before it"
        raise TraceStoreError(
            f"call {step.key!r} (session {step.session_id!r}) continues call {step.parent!r}, which {what}: "
            "no row can be built. The trace is damaged, or steps of two sessions were mixed"
        )
    return parent


def _leaves(steps: Sequence[Step], by_key: Mapping[str, Step]) -> list[Step]:
    """Those of ``steps`` that no other of them continues, directly or by way of further steps."""
    inner: set[str] = set()
    for step in steps:
        ancestor = _parent(step, by_key)
        while ancestor is not None and ancestor.key not in inner:
            inner.add(ancestor.key)
            ancestor = _parent(ancestor, by_key)
    return [step for step in steps if step.key not in inner]


def _path(leaf: Step, by_key: Mapping[str, Step]) -> list[Step]:
    """From the root of the token tree to ``leaf``."""
    path: list[Step] = []
    step: Step | None = leaf
    while step is not None:
        path.append(step)
        step = _parent(step, by_key)
    return path[::-1]


def _order(path: Sequence[Step]) -> tuple[list[int], tuple[float, ...], str]:
    """By content; the key only tells apart what is the same in every number."""
    ids = [token for step in path for token in (*step.added_ids, *step.completion_ids)]
    return ids, path[-1].logprobs, path[-1].key


def _row(path: Sequence[Step], advantage: float, temperature: float, meta: RowMeta) -> Row:
    ids: list[int] = []
    sampled: list[tuple[slice, Step]] = []
    targets = set(meta.call_ids)
    for step in path:
        start = len(ids) + len(step.added_ids)
        ids += (*step.added_ids, *step.completion_ids)
        if step.key in targets:
            sampled.append((slice(start, len(ids)), step))
    mask = np.zeros(len(ids), np.float32)
    logprobs = np.zeros(len(ids), np.float32)
    versions = np.full(len(ids), -1, np.int32)
    for at, step in sampled:
        mask[at], logprobs[at], versions[at] = 1.0, step.logprobs, step.versions
    return Row(
        tokens=np.array(ids, np.int32),
        mask=mask,
        logprobs=logprobs,
        advantages=mask * np.float32(advantage),
        versions=versions,
        temperature=temperature,
        meta=meta,
    )
