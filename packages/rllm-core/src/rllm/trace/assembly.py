"""Recorded steps become trajectories: one per agent's run; and what a flow returned is laid over them."""

__all__ = ["SIDE_CALL", "apply_returned", "assemble"]

import math
from collections.abc import Iterable, Mapping, Sequence

from rllm.errors import SessionError
from rllm.types import Episode, Step, Trajectory

SIDE_CALL = "side call"
"""``Step.untrainable`` of a call outside every span in a session whose adapter opened spans."""


def assemble(steps: Iterable[Step]) -> tuple[tuple[Trajectory, ...], tuple[Step, ...]]:
    """Split one session's steps into ``(trajectories, side_steps)``, each in the order in which the calls started.

    Each span is a trajectory, and the calls outside every span are one more per role. Side calls and the answers of
    frozen upstreams belong to no trajectory. A call that failed or was cancelled stays where it was made.
    """
    runs: dict[tuple[str, str | None], list[Step]] = {}
    side_steps: list[Step] = []
    for step in sorted(steps, key=_order):
        if step.route != "policy" or step.untrainable == SIDE_CALL:
            side_steps.append(step)
        else:
            runs.setdefault((step.role, step.span_id), []).append(step)
    trajectories = tuple(Trajectory(role=role, span_id=span, steps=tuple(run)) for (role, span), run in runs.items())
    return trajectories, tuple(side_steps)


def apply_returned(trajectories: Sequence[Trajectory], returned: Trajectory | Episode) -> tuple[Trajectory, ...]:
    """Lay what a flow returned over what was recorded.

    A returned trajectory gives a role, output and reward. Its steps are those it names by call id, else those of the
    span it names, else all of its role; where several of one role are returned and as many were recorded, they are
    matched in order. A single returned trajectory whose role recorded nothing names the single run that is left.
    Token ids and all else of a step always come from the record. Recorded runs that nothing names stay as they are.

    Raises SessionError where a call id or span was never recorded, a call is named twice, or it can't be told which
    runs are meant.
    """
    wanted = returned.trajectories if isinstance(returned, Episode) else (returned,)
    known = {step.key: step for run in trajectories for step in run.steps}
    picked: dict[int, tuple[Step, ...]] = _picked_by_call(known, wanted)
    for index, trajectory in enumerate(wanted):
        if index not in picked and trajectory.span_id is not None:
            picked[index] = _steps_of_span(_without(trajectories, picked), trajectory.span_id)
    for role, indices in _unnamed(wanted, picked).items():
        runs = [run for run in _without(trajectories, picked) if run.role == role]
        if len(indices) == 1:
            picked[indices[0]] = tuple(step for run in runs for step in run.steps)
        elif len(runs) in (0, len(indices)):
            picked |= {i: runs[n].steps if runs else () for n, i in enumerate(indices)}
        else:
            raise SessionError(
                f"the agent returned {len(indices)} trajectories of role {role!r} without naming their calls, and "
                f"{len(runs)} runs of that role were recorded. Name the calls in `steps`, or make each run inside its "
                f"own `with rllm.as_role({role!r}):`."
            )
    _give_what_is_left(trajectories, wanted, picked)
    result = [_filled(trajectory, picked[index], trajectories) for index, trajectory in enumerate(wanted)]
    return tuple(sorted([*result, *_without(trajectories, picked)], key=_first))


def _order(step: Step) -> tuple[int, int]:
    return step.index, step.choice


def _first(trajectory: Trajectory) -> tuple[float, int]:
    """When a trajectory began; one without calls comes last."""
    return min((_order(step) for step in trajectory.steps), default=(math.inf, 0))


def _without(trajectories: Sequence[Trajectory], picked: Mapping[int, tuple[Step, ...]]) -> list[Trajectory]:
    """The recorded runs less the picked steps; runs that have none left are gone."""
    taken = {step.key for steps in picked.values() for step in steps}
    rest = [run.model_copy(update={"steps": tuple(s for s in run.steps if s.key not in taken)}) for run in trajectories]
    return [run for run in rest if run.steps]


def _picked_by_call(known: Mapping[str, Step], wanted: Sequence[Trajectory]) -> dict[int, tuple[Step, ...]]:
    """The recorded steps of each wanted trajectory that names any, by its index."""
    picked: dict[int, tuple[Step, ...]] = {}
    taken: set[str] = set()
    for index, trajectory in enumerate(wanted):
        for key in (step.key for step in trajectory.steps):
            if key not in known:
                raise SessionError(
                    f"the agent returned a trajectory of role {trajectory.role!r} with the call {key!r}, which was "
                    "never recorded as the policy's in this session. Calls are named by the `id` of their response; "
                    "leave `steps` out to take all recorded calls of the role."
                )
            if key in taken:
                raise SessionError(f"the agent returned the call {key!r} twice; a call belongs to one trajectory.")
            taken.add(key)
        if trajectory.steps:
            picked[index] = tuple(known[step.key] for step in trajectory.steps)
    return picked


def _steps_of_span(runs: Sequence[Trajectory], span_id: str) -> tuple[Step, ...]:
    steps = tuple(step for run in runs if run.span_id == span_id for step in run.steps)
    if not steps:
        raise SessionError(
            f"the agent returned a trajectory of span {span_id!r}, but no policy call of that span is left to give it."
        )
    return steps


def _unnamed(wanted: Sequence[Trajectory], picked: Mapping[int, tuple[Step, ...]]) -> dict[str, list[int]]:
    """Role → indices of the wanted trajectories that name neither calls nor a span."""
    by_role: dict[str, list[int]] = {}
    for index, trajectory in enumerate(wanted):
        if index not in picked:
            by_role.setdefault(trajectory.role, []).append(index)
    return by_role


def _give_what_is_left(
    trajectories: Sequence[Trajectory], wanted: Sequence[Trajectory], picked: dict[int, tuple[Step, ...]]
) -> None:
    """A returned trajectory without calls while calls are left over: the one names the other, or it is a mistake."""
    empty = [index for index in range(len(wanted)) if not picked[index]]
    left = _without(trajectories, picked)
    if not empty or not left:
        return
    if len(empty) == 1 and len(left) == 1:
        picked[empty[0]] = left[0].steps
        return
    roles = ", ".join(sorted({repr(run.role) for run in left}))
    raise SessionError(
        f"the agent returned a trajectory of role {wanted[empty[0]].role!r}, but no call of that role was recorded, "
        f"only of {roles}. Make its calls inside `with rllm.as_role({wanted[empty[0]].role!r}):`, or name them in "
        "`steps`."
    )


def _filled(returned: Trajectory, steps: tuple[Step, ...], recorded: Sequence[Trajectory]) -> Trajectory:
    """The returned trajectory with recorded steps; it keeps a span where all of them are of one."""
    keys = {step.key for step in steps}
    spans = {run.span_id for run in recorded if any(step.key in keys for step in run.steps)}
    return Trajectory(
        role=returned.role,
        span_id=spans.pop() if len(spans) == 1 else None,
        steps=tuple(sorted(steps, key=_order)),
        reward=returned.reward,
        output=returned.output,
    )
