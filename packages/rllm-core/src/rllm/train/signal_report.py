"""Why is my reward flat? What a run's metrics say about its learning signal, each finding with the next step.

    metrics.jsonl ──▶ findings

A pure function of the metrics, so that ``rllm run check`` says of a run's files what the run itself said at its end. A
finding is about the last quarter of the steps (a model that is cut short at first and not later has learnt something),
but for what can't get better by itself.
"""

__all__ = ["Finding", "signal_report"]

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Metrics = Mapping[str, float]

NO_TARGET = "no_target: "
"""How the reasons begin of rollouts none of whose calls may be trained on."""


@dataclass(frozen=True)
class Finding:
    """One reason why a run may learn little, and what to do."""

    name: str
    what: str
    """With the figure that it was found by."""
    next_step: str

    def __str__(self) -> str:
        return f"{self.what}. {self.next_step}"


def signal_report(lines: Sequence[Metrics]) -> list[Finding]:
    """The findings of a run with these lines of ``metrics.jsonl``; none where its signal is sound or it has no step."""
    steps = [line for line in lines if "rollout/count" in line]
    facts: dict[str, float] = {}
    for line in lines:
        facts |= {k: v for k, v in line.items() if k.startswith(("tasks/", "evaluator/"))}
    if not steps:
        return []
    run = _Run(steps, steps[-max(1, len(steps) // 4) :], facts)
    found = [finding for check in _CHECKS if (finding := check(run)) is not None]
    if any(finding.name == "constant_evaluator" for finding in found):
        # Its groups have no signal because of it.
        found = [finding for finding in found if finding.name != "no_signal"]
    return found


@dataclass(frozen=True)
class _Run:
    steps: Sequence[Metrics]
    late: Sequence[Metrics]
    facts: Metrics

    def total(self, name: str) -> float:
        """Over the late steps; at least 1, to divide by."""
        return max(1.0, sum(m.get(name, 0.0) for m in self.late))

    def share(self, name: str, of: str) -> float:
        """Of the late steps, in all."""
        return sum(m.get(name, 0.0) for m in self.late) / self.total(of)

    def mean(self, name: str, steps: Sequence[Metrics] | None = None) -> float:
        """Of the late steps that have it; 0 where none has."""
        values = [m[name] for m in (self.late if steps is None else steps) if name in m]
        return sum(values) / len(values) if values else 0.0

    def counts(self, prefix: str) -> Counter[str]:
        """What there was of each kind over the late steps."""
        found: Counter[str] = Counter()
        for line in self.late:
            found.update({k.removeprefix(prefix): round(v) for k, v in line.items() if k.startswith(prefix)})
        return found


def _words(kinds: Counter[str]) -> str:
    """The commonest ones."""
    return ", ".join(f"{count} × {kind}" for kind, count in kinds.most_common(3))


def _gap(run: _Run) -> Finding | None:
    gap, capped = run.mean("update/logprob_gap_mean"), run.mean("update/ratio_capped")
    if gap <= 0.05 and capped <= 0.05:
        return None
    return Finding(
        "logprob_gap",
        f"sampler and trainer differ by {gap:.3f} nats a token on average, and {capped:.0%} of the tokens are capped",
        "Look whether the sampler has the weights that are trained (update/version), and compute in float32 "
        "(tinker.precision=fp32)",
    )


def _prefix_breaks(run: _Run) -> Finding | None:
    breaks = run.share("trace/prefix_breaks", "rollout/count")
    if breaks <= 0.5:
        return None
    kinds = _words(run.counts("trace/prefix_breaks/"))
    return Finding(
        "prefix_breaks",
        f"a rollout's history is edited {breaks:.1f} times on average ({kinds}), and each time its turns are read and "
        "trained on anew",
        "Have the agent send back the messages as it got them, or see docs/agents.md on what breaks a prefix",
    )


def _constant_evaluator(run: _Run) -> Finding | None:
    rewards = [(m["reward/mean"], m["reward/std"]) for m in run.steps if "reward/std" in m]
    if not rewards or any(std > 0 for _, std in rewards) or len({mean for mean, _ in rewards}) > 1:
        return None
    if any(m.get("groups/no_signal", 0) < m.get("groups/count", 0) for m in run.steps):
        return None  # roles have rewards of their own
    return Finding(
        "constant_evaluator",
        f"every rollout got the reward {rewards[0][0]:g}",
        "Read some outputs (rllm run show --episodes) and grade one by hand: the evaluator does not tell them apart, "
        "or the task is far too hard or too easy",
    )


def _no_signal(run: _Run) -> Finding | None:
    share = run.share("groups/skipped", "groups/count")
    if share <= 0.5:
        return None
    level = run.mean("reward/mean")
    return Finding(
        "no_signal",
        f"{share:.0%} of the groups have equal rewards, so nothing is learnt from them (mean reward {level:.2f})",
        "Choose tasks that are neither always nor never solved, give partial rewards, or raise group_size",
    )


def _truncated(run: _Run) -> Finding | None:
    share = run.mean("rollout/truncated")
    if share <= 0.5:
        return None
    return Finding(
        "truncated",
        f"{share:.0%} of the completions are cut by their limit",
        "Raise sampling.max_tokens, or ask for short answers in the prompt",
    )


def _failed(run: _Run) -> Finding | None:
    share = run.share("rollout/failed", "rollout/count")
    if share <= 0.2:
        return None
    return Finding(
        "failed",
        f"{share:.0%} of the rollouts fail ({_words(run.counts('failure/'))})",
        "docs/troubleshooting.md says what each kind means; log.txt and the trace have the errors",
    )


def _dropped(run: _Run) -> Finding | None:
    kinds = Counter({kind: n for kind, n in run.counts("left_out/").items() if not kind.startswith(NO_TARGET)})
    share = kinds.total() / run.total("rollout/count")
    if share <= 0.2:
        return None
    return Finding(
        "dropped",
        f"{share:.0%} of the rollouts are in no group ({_words(kinds)})",
        "rollout.on_failure says what becomes of which failure; what is dropped teaches nothing, also not to avoid it",
    )


def _untrainable(run: _Run) -> Finding | None:
    """Calls, and rollouts that had no other ones and so are in no group."""
    kinds = run.counts("trace/untrainable/") + run.counts(f"left_out/{NO_TARGET}")
    share = kinds.total() / max(1.0, sum(m["rollout/calls_mean"] * m["rollout/count"] for m in run.late))
    if share <= 0.2:
        return None
    return Finding(
        "untrainable",
        f"{share:.0%} of the calls may not be trained on ({_words(kinds)})",
        "docs/troubleshooting.md says what each reason means: mostly an agent or a route that draws otherwise than the "
        "run, or gives a call up",
    )


def _clipped(run: _Run) -> Finding | None:
    share = run.mean("update/clip_fraction")
    if share <= 0.2:
        return None
    return Finding(
        "clipped",
        f"{share:.0%} of the tokens are clipped: within a batch the policy goes further than the loss lets it learn",
        "Lower optimizer.lr or minibatches, or widen ppo.clip_low and ppo.clip_high",
    )


def _shared_questions(run: _Run) -> Finding | None:
    shared = run.facts.get("tasks/shared", 0)
    if not shared:
        return None
    return Finding(
        "shared_questions",
        f"{shared:.0f} of the {run.facts['tasks/held_out']:.0f} held-out questions are also trained on, but for case, "
        "spaces and punctuation",
        "Split by question: as it is, the validation measures memory",
    )


def _length(run: _Run) -> Finding | None:
    correlation = run.mean("reward/length_correlation", run.steps)
    if abs(correlation) <= 0.5:
        return None
    return Finding(
        "length",
        f"within a group the reward goes with the {'length' if correlation > 0 else 'shortness'} of the completions "
        f"(correlation {correlation:+.2f})",
        "If that is not what you want to teach, look whether the evaluator rewards it by accident",
    )


def _unrepeatable(run: _Run) -> Finding | None:
    changed, regraded = run.facts.get("evaluator/changed", 0), run.facts.get("evaluator/regraded", 0)
    if not changed:
        return None
    return Finding(
        "unrepeatable_evaluator",
        f"the evaluator, asked again, graded {changed:.0f} of {regraded:.0f} rollouts otherwise",
        "Take the chance out of it, or average over several grades: its noise hides the signal",
    )


_CHECKS: Sequence[Callable[[_Run], Finding | None]] = (
    _gap,
    _untrainable,
    _constant_evaluator,
    _unrepeatable,
    _shared_questions,
    _failed,
    _dropped,
    _no_signal,
    _truncated,
    _prefix_breaks,
    _clipped,
    _length,
)
