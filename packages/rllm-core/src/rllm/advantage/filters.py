"""Which recorded steps may be trained on: asked when groups are made, and again when rows are built."""

__all__ = ["untrainable_reason"]

import math

from rllm.types import Step


def untrainable_reason(step: Step, temperature: float) -> str | None:
    """Why no token of ``step`` may become a target; None where all of them may.

    ``temperature`` is the run's. A policy gradient needs the logprob of the very distribution that was sampled from,
    as the trainer computes it, log softmax(logits / temperature); so a step is left out that was drawn at another
    temperature, or with top_p, top_k, min_p or a penalty, or greedily. It stays context for what follows it.
    """
    if step.untrainable is not None:
        return step.untrainable
    if step.route != "policy":
        return "frozen upstream"
    if step.status != "ok":
        return f"call {step.status}"
    if not step.sampling.is_full_softmax:
        return "modified distribution"
    if step.sampling.temperature != temperature:
        return "other temperature"
    if not step.completion_ids:
        return "empty completion"
    if step.parent is None and not step.added_ids:
        return "empty prompt"  # its first token has no context, and no logits to come from
    if not all(map(math.isfinite, step.logprobs)):
        return "logprob not finite"
    return None
