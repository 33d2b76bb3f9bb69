"""Evaluation on held-out tasks between two steps of training."""

__all__ = ["validate", "validate_if_due"]

from rllm.errors import TaskError
from rllm.evals.runner import evaluate
from rllm.evals.statistics import Summary
from rllm.rollouts import BugWatch
from rllm.train.run import Run
from rllm.types import Episode


async def validate_if_due(run: Run) -> None:
    """Between two steps, once: before training, and every so many steps."""
    if run.cursor.is_validated:
        return
    every = run.config.validation.every_steps
    summary: Summary | None = None
    if run.steps == 0:
        summary = await validate(run, "before")
        run.move(before=None if summary is None else summary.as_dict())
    elif every is not None and run.steps % every == 0 and run.steps != run.total_steps:
        summary = await validate(run, f"at step {run.steps}")
    run.move(is_validated=True, reward=None if summary is None else summary.reward)


async def validate(run: Run, when: str) -> Summary | None:
    """Held-out tasks, with the same seeds each time; None where there are none.

    Raises RunStopped where the run is asked to stop: resuming does it again from its start.
    """
    if not run.held_out:
        return None
    settings = run.config.validation
    sampling = run.sampling
    if settings.temperature is not None:
        sampling = sampling.model_copy(update={"temperature": settings.temperature})

    def progress(done: int, total: int, episode: Episode) -> None:
        run.display.progress(f"validation {when}:", done, total)

    summary, episodes = await run.stopping.unless_asked(
        evaluate(
            *(run.runner, run.held_out, settings.samples, sampling, run.serving.store),
            progress=progress,
            phase="validation",
        )
    )
    if run.steps == 0:
        BugWatch().check(episodes)
    if summary.n_failed == summary.n_samples:
        raise TaskError(f"no rollout of the validation could be graded: {dict(summary.failures)}")
    run.display.validated(when, summary)
    run.record({"step": run.steps, **{f"validation/{k}": v for k, v in _flat(summary).items()}})
    return summary


def _flat(summary: Summary) -> dict[str, float]:
    figures = {"reward": summary.reward, "reward_se": summary.reward_se, "accuracy": summary.accuracy}
    figures |= {f"pass@{k}": v for k, v in summary.pass_at.items()}
    return figures | {"failed": float(summary.n_failed)}
