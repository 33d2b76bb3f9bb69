"""The token tree of a session: each step holds what it adds to its parent's stream, here the streams come back."""

__all__ = ["prompt_ids", "steps_by_key", "stream_ids"]

from collections.abc import Iterable, Mapping

from rllm.errors import TraceStoreError
from rllm.types import Step


def steps_by_key(steps: Iterable[Step]) -> dict[str, Step]:
    """The steps of one session by ``Step.key``. Raises TraceStoreError where two have the same."""
    by_key: dict[str, Step] = {}
    for step in steps:
        if step.key in by_key:
            raise TraceStoreError(f"the call {step.key!r} of session {step.session_id!r} was recorded twice")
        by_key[step.key] = step
    return by_key


def prompt_ids(step: Step, by_key: Mapping[str, Step]) -> list[int]:
    """The whole prompt that ``step`` was sampled from, int[T]: its ancestors' tokens and what it adds.

    ``by_key`` holds every step of the session (``steps_by_key``). Raises TraceStoreError where an ancestor is missing
    from it or the parents go round in a circle.

    >>> first = Step(call_id="a", session_id="s", index=0, added_ids=(1, 2), completion_ids=(3,), logprobs=(-1.0,),
    ...              versions=(0,))
    >>> second = Step(call_id="b", session_id="s", index=1, parent="a", added_ids=(4,))
    >>> prompt_ids(second, steps_by_key([first, second]))
    [1, 2, 3, 4]
    """
    pieces: list[tuple[int, ...]] = [step.added_ids]
    seen = {step.key}
    parent = step.parent
    while parent is not None:
        ancestor = by_key.get(parent)
        if ancestor is None or parent in seen:
            what = "is not among the session's steps" if ancestor is None else "is its own ancestor"
            raise TraceStoreError(
                f"the prompt of call {step.key!r} of session {step.session_id!r} can't be put together: "
                f"{parent!r} {what}"
            )
        seen.add(parent)
        pieces += (ancestor.completion_ids, ancestor.added_ids)
        parent = ancestor.parent
    return [token for piece in reversed(pieces) for token in piece]


def stream_ids(step: Step, by_key: Mapping[str, Step]) -> list[int]:
    """``prompt_ids`` and the step's completion: what a step that continues this one starts from."""
    return [*prompt_ids(step, by_key), *step.completion_ids]
