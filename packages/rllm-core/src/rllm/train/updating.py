"""The optimizer steps of one batch: from its rows to published weights."""

__all__ = ["update"]

import dataclasses
from collections.abc import Sequence

from rllm.protocols import AdamParams, LossSpec, StepResult
from rllm.train.batch import Batch
from rllm.train.run import Run
from rllm.train.schedule import learning_rate
from rllm.types import Row


async def update(run: Run, batch: Batch) -> list[tuple[StepResult, Sequence[Row]]]:
    """The optimizer steps of a batch, with the gateway held: no call is answered from half-changed weights."""
    config, backend = run.config, run.backend
    if not batch.minibatches:
        return []
    loss = LossSpec(
        name=config.loss,
        function=run.plugins.get("loss", config.loss).value,
        settings=config.plugins.get(config.loss),
        ratio_cap=config.ratio_cap,
        kl_coef=config.kl_coef,
    )
    opt = config.optimizer
    adam = AdamParams(
        lr=learning_rate(opt, run.steps, run.total_steps),
        beta1=opt.beta1,
        beta2=opt.beta2,
        eps=opt.eps,
        weight_decay=opt.weight_decay,
        clip_norm=opt.clip_norm,
    )
    results: list[tuple[StepResult, Sequence[Row]]] = []
    async with run.serving.gateway.hold():
        run.is_between = False
        minibatches = await _with_extra_logprobs(run, batch.minibatches)
        for done, rows in enumerate(minibatches):
            run.display.progress("updates", done, len(minibatches))
            results.append((await backend.train_step(rows, loss, adam), rows))
        await backend.publish()
    run.has_updated = True
    return results


async def _with_extra_logprobs(run: Run, minibatches: Sequence[Sequence[Row]]) -> Sequence[Sequence[Row]]:
    """The rows with what must be computed before the first update: the trainer's own logprobs where several
    optimizer steps follow (else the current forward gives them), the reference's where there is a KL term."""
    filled = [list(rows) for rows in minibatches]
    if len(filled) > 1:
        for k, rows in enumerate(filled):
            old = await run.backend.logprobs(rows, of="current")
            filled[k] = [dataclasses.replace(r, old_logprobs=lp) for r, lp in zip(rows, old, strict=True)]
    if run.config.kl_coef > 0:
        for k, rows in enumerate(filled):
            ref = await run.backend.logprobs(rows, of="reference")
            filled[k] = [dataclasses.replace(r, ref_logprobs=lp) for r, lp in zip(rows, ref, strict=True)]
    return filled
