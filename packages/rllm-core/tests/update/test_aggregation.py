"""The weights of targets against the papers' formulas, and the whole way from rewards to gradients."""

import dataclasses

import numpy as np
import pytest
import torch

from rllm.advantage.estimators import GrpoSettings, grpo
from rllm.protocols import LossInputs
from rllm.types import Row
from rllm.update import weigh
from rllm.update.losses import importance_sampling

MAX_TOKENS = 32


def row(targets: int, advantage: float = 1.0, prompt: int = 3) -> Row:
    mask = np.array([0] * prompt + [1] * targets, np.float32)
    return Row(
        tokens=np.arange(len(mask), dtype=np.int32),
        mask=mask,
        logprobs=-mask,
        advantages=mask * np.float32(advantage),
        versions=np.where(mask > 0, 0, -1).astype(np.int32),
    )


def batch(rng: np.random.Generator) -> list[Row]:
    return [row(int(n), prompt=int(rng.integers(1, 9))) for n in rng.integers(1, MAX_TOKENS + 1, rng.integers(1, 9))]


def total(rows: list[Row], losses: list[np.ndarray]) -> float:
    """What a backend sums."""
    return sum(float((r.mask.astype(np.float64) * loss).sum()) for r, loss in zip(rows, losses, strict=True))


def reference(aggregation: str, n_rollouts: float, masks: list[np.ndarray], losses: list[np.ndarray]) -> float:
    chosen = [loss[mask > 0] for mask, loss in zip(masks, losses, strict=True)]
    if aggregation == "token_mean":
        return float(np.concatenate(chosen).mean())
    if aggregation == "sequence_mean":
        return float(np.mean([c.mean() for c in chosen]))
    if aggregation == "constant":
        return float(sum(c.sum() for c in chosen) / n_rollouts / MAX_TOKENS)
    return float(sum(c.sum() for c in chosen))


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant", "sum"])
def test_the_weighted_sum_is_the_papers_mean(aggregation):
    rng = np.random.default_rng(0)
    for _ in range(1000):
        rows, n_rollouts = batch(rng), int(rng.integers(1, 100))
        losses = [rng.normal(size=len(r.tokens)) for r in rows]
        weighed = weigh(rows, aggregation, max_tokens=MAX_TOKENS, n_rollouts=n_rollouts)
        expected = reference(aggregation, n_rollouts, [r.mask for r in rows], losses)
        assert total(weighed, losses) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant", "sum"])
def test_only_the_mask_changes_and_only_where_it_was_not_zero(aggregation):
    before = [row(3), row(5, advantage=-2.0)]
    after = weigh(before, aggregation, max_tokens=MAX_TOKENS, n_rollouts=2)
    for old, new in zip(before, after, strict=True):
        assert new.mask.dtype == np.float32
        assert (new.mask > 0).tolist() == (old.mask > 0).tolist()
        same = dataclasses.replace(new, mask=old.mask)
        for name in ("tokens", "mask", "logprobs", "advantages", "versions"):
            np.testing.assert_array_equal(getattr(same, name), getattr(old, name))


def test_a_row_can_not_be_weighed_twice():
    # axon-rl/gem#113: normalised twice.
    once = weigh([row(3)], "token_mean", max_tokens=MAX_TOKENS, n_rollouts=1)
    with pytest.raises(ValueError, match="has been weighed before"):
        weigh(once, "token_mean", max_tokens=MAX_TOKENS, n_rollouts=1)


def test_a_truncated_completion_counts_above_and_below_the_line():
    # huggingface/trl#6439: truncated completions in the denominator but not in the numerator.
    rows = [row(MAX_TOKENS), row(4)]
    weighed = weigh(rows, "token_mean", max_tokens=MAX_TOKENS, n_rollouts=2)
    assert sum(r.mask.sum() for r in weighed) == pytest.approx(1.0)
    weighed = weigh(rows, "sequence_mean", max_tokens=MAX_TOKENS, n_rollouts=2)
    assert [r.mask.sum() for r in weighed] == pytest.approx([0.5, 0.5])


def test_a_constant_weight_does_not_depend_on_how_many_groups_are_skipped():
    alone = weigh([row(3)], "constant", max_tokens=MAX_TOKENS, n_rollouts=8)
    among = weigh([row(3), *(row(9) for _ in range(7))], "constant", max_tokens=MAX_TOKENS, n_rollouts=8)
    assert alone[0].mask.tolist() == among[0].mask.tolist()


def test_no_rows_are_weighed_to_no_rows():
    assert weigh([], "token_mean", max_tokens=MAX_TOKENS, n_rollouts=4) == []


def gradients(rewards: np.ndarray, lengths: np.ndarray, settings: GrpoSettings, aggregation: str) -> list[np.ndarray]:
    """d loss / d logprob of each target, by the whole way through estimator, rows, weights and loss."""
    [advantages] = grpo([rewards], settings)
    rows = [row(int(n), float(a)) for n, a in zip(lengths, advantages, strict=True)]
    result: list[np.ndarray] = []
    for r in weigh(rows, aggregation, max_tokens=MAX_TOKENS, n_rollouts=len(rows)):
        logprobs = torch.tensor(r.logprobs[r.mask > 0], dtype=torch.float64, requires_grad=True)
        inputs = LossInputs(logprobs.detach(), logprobs.detach(), torch.tensor(r.advantages[r.mask > 0]).double())
        loss, _ = importance_sampling(logprobs, inputs)
        (torch.tensor(r.mask[r.mask > 0]).double() * loss).sum().backward()
        result.append(logprobs.grad.numpy())
    return result


def test_both_changes_of_dr_grpo_have_a_setting_and_together_give_its_gradient():
    # verl-project/verl#990. Dr. GRPO: 1/G Σ_i 1/L Σ_t (r_i − mean(r)) ∇ log π; GRPO: 1/G Σ_i 1/|o_i| Σ_t … / std.
    rng = np.random.default_rng(0)
    for _ in range(50):
        size = int(rng.integers(2, 9))
        rewards, lengths = rng.normal(size=size), rng.integers(1, MAX_TOKENS + 1, size)
        centred = rewards - rewards.mean()
        got = gradients(rewards, lengths, GrpoSettings(std=False), "constant")
        for g, a, n in zip(got, centred, lengths, strict=True):
            np.testing.assert_allclose(g, np.full(n, -a / (size * MAX_TOKENS)), rtol=1e-6, atol=1e-6)
        got = gradients(rewards, lengths, GrpoSettings(), "sequence_mean")
        for g, a, n in zip(got, centred / (rewards.std(ddof=1) + 1e-6), lengths, strict=True):
            np.testing.assert_allclose(g, np.full(n, -a / (size * n)), rtol=1e-6, atol=1e-6)
