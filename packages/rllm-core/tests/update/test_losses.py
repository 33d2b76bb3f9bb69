"""The losses against scalar references in float64, verl's formula, finite differences, and edge cases."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rllm.plugins import PluginManager
from rllm.protocols import LossInputs
from rllm.update.losses import PpoSettings, importance_sampling, importance_weights, k3, ppo

SETTINGS = [
    PpoSettings(),
    PpoSettings(clip_low=0.2, clip_high=0.2),
    PpoSettings(clip_low=0.0, clip_high=0.0),
    PpoSettings(dual_clip=3.0),
    PpoSettings(clip_low=0.1, clip_high=1.0, dual_clip=1.5),
]


def tensor(values, dtype=torch.float64) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=dtype)


def case(rng: np.random.Generator, n: int = 16) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    old = -rng.exponential(2.0, n)
    new = np.minimum(old + rng.normal(size=n) * 10.0 ** rng.uniform(-3, 0.3), 0.0)
    return new, old, rng.choice([-1.0, 0.0, 1.0, rng.normal()], n)


def inputs_of(old, advantages, dtype=torch.float64) -> LossInputs:
    return LossInputs(tensor(old, dtype), tensor(old, dtype), tensor(advantages, dtype))


def ppo_reference(new: float, old: float, advantage: float, s: PpoSettings) -> tuple[float, float]:
    """The papers' objective, one token at a time: (loss, whether the clip takes the gradient away)."""
    ratio = math.exp(new - old)
    clipped = min(max(ratio, 1 - s.clip_low), 1 + s.clip_high)
    objective = min(ratio * advantage, clipped * advantage)
    is_clipped = clipped * advantage < ratio * advantage
    if s.dual_clip is not None and advantage < 0:
        objective = max(objective, s.dual_clip * advantage)
    return -objective, float(is_clipped)


def test_importance_sampling_is_minus_ratio_times_advantage():
    rng = np.random.default_rng(0)
    for _ in range(1000):
        new, old, advantages = case(rng)
        loss, measured = importance_sampling(tensor(new), inputs_of(old, advantages))
        expected = [-math.exp(n - o) * a for n, o, a in zip(new, old, advantages, strict=True)]
        np.testing.assert_allclose(loss, expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(measured["ratio"], np.exp(new - old), rtol=1e-6)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_ppo_is_the_papers_clipped_objective(settings):
    rng = np.random.default_rng(1)
    for _ in range(1000):
        new, old, advantages = case(rng, 8)
        loss, measured = ppo(tensor(new), inputs_of(old, advantages), settings)
        expected = [ppo_reference(n, o, a, settings) for n, o, a in zip(new, old, advantages, strict=True)]
        np.testing.assert_allclose(loss, [e[0] for e in expected], rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(measured["clip_fraction"], [e[1] for e in expected])


def test_ppo_agrees_with_verls_formula():
    # verl: max(-A r, -A clamp(r)), and where A < 0 the smaller of that and -A c.
    rng = np.random.default_rng(2)
    for _ in range(200):
        new, old, a = (tensor(x) for x in case(rng))
        r = torch.exp(torch.clamp(new - old, -20, 20))
        first = torch.maximum(-a * r, -a * torch.clamp(r, 1 - 0.2, 1 + 0.28))
        expected = torch.where(a < 0, torch.min(-a * 3.0, first), first)
        loss, measured = ppo(new, inputs_of(old, a), PpoSettings(dual_clip=3.0))
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(measured["dual_clip_fraction"], ((first > -a * 3.0) & (a < 0)).double())


LOSSES = {
    "importance_sampling": importance_sampling,
    "ppo": lambda lp, x: ppo(lp, x, PpoSettings()),
    "ppo with dual clip": lambda lp, x: ppo(lp, x, PpoSettings(dual_clip=2.0)),
    "kl": lambda lp, x: (k3(lp, x.old_logprobs), {}),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_equal_finite_differences(name):
    rng = np.random.default_rng(3)
    for _ in range(20):
        new, old, advantages = case(rng)
        inputs = inputs_of(old, advantages)
        logprobs = tensor(new).requires_grad_()
        # The loss has kinks; a difference quotient across one is no derivative.
        ratios = np.exp(new - old)
        near = np.min([np.abs(ratios - kink) for kink in (0.8, 1.28, 2.0)], axis=0) < 1e-4
        LOSSES[name](logprobs, inputs)[0].sum().backward()
        h = 1e-6
        above, below = (LOSSES[name](tensor(new + d), inputs)[0] for d in (h, -h))
        numeric = ((above - below) / (2 * h)).numpy()
        np.testing.assert_allclose(logprobs.grad.numpy()[~near], numeric[~near], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["importance_sampling", "ppo", "ppo with dual clip"])
def test_on_policy_the_gradient_is_reinforces(name):
    rng = np.random.default_rng(4)
    logprobs = tensor(-rng.exponential(size=64)).requires_grad_()
    advantages = rng.normal(size=64)
    loss, measured = LOSSES[name](logprobs, inputs_of(logprobs.detach(), advantages))
    loss.sum().backward()
    np.testing.assert_allclose(logprobs.grad, -advantages, rtol=1e-12)
    assert measured["approx_kl"].tolist() == measured["approx_kl_k1"].tolist() == [0.0] * 64
    assert measured["ratio"].tolist() == [1.0] * 64


def test_clipping_is_asymmetric():
    ratios = tensor([1.27, 1.29, 0.81, 0.79])
    logprobs = ratios.log().requires_grad_()
    up, down = tensor([1.0] * 4), tensor([-1.0] * 4)
    for advantages, kept in ((up, [1, 0, 1, 1]), (down, [1, 1, 1, 0])):
        loss, measured = ppo(logprobs, LossInputs(0 * ratios, 0 * ratios, advantages), PpoSettings())
        [gradient] = torch.autograd.grad(loss.sum(), logprobs)
        assert (gradient != 0).int().tolist() == kept
        assert measured["clip_fraction"].tolist() == [1.0 - k for k in kept]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LOSSES)
def test_no_gap_between_policies_and_no_advantage_makes_a_loss_or_gradient_that_is_not_finite(name, dtype):
    gaps = [0.0, 1e-8, 1.0, 19.0, 21.0, 89.0, 1000.0]
    new = tensor([s * g for g in gaps for s in (1, -1) for _ in range(3)], dtype).requires_grad_()
    advantages = tensor([-1.0, 0.0, 1.0] * (2 * len(gaps)), dtype)
    loss, measured = LOSSES[name](new, LossInputs(new.detach() * 0, new.detach() * 0, advantages))
    loss.sum().backward()
    assert loss.dtype == dtype
    assert torch.isfinite(loss).all()
    assert torch.isfinite(new.grad).all()
    assert all(torch.isfinite(m).all() and m.shape == loss.shape for m in measured.values())


@pytest.mark.parametrize("name", LOSSES)
def test_no_targets_have_no_loss(name):
    loss, measured = LOSSES[name](tensor([]), inputs_of([], []))
    assert loss.shape == (0,)
    assert all(m.shape == (0,) for m in measured.values())


@pytest.mark.parametrize("name", LOSSES)
def test_measurements_carry_no_gradient(name):
    _, measured = LOSSES[name](tensor([-1.0]).requires_grad_(), inputs_of([-1.5], [1.0]))
    assert not any(m.requires_grad for m in measured.values())


# --- what a backend puts around a loss --------------------------------------------------------------------------


def test_importance_weights_are_the_truncated_ratio_without_gradient():
    old = tensor([-1.0, -1.0, -1.0, -300.0]).requires_grad_()
    weights = importance_weights(old, tensor([-1.0, -1.5, -9.0, -0.1]), cap=2.0)
    np.testing.assert_allclose(weights, [1.0, math.exp(0.5), 2.0, math.exp(-20.0)], rtol=1e-12)
    assert not weights.requires_grad


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_the_first_ratio_is_one_at_any_temperature_that_both_sides_use(temperature):
    # huggingface/trl#4159: about 2 where the trainer left the temperature out.
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    drawn = torch.distributions.Categorical(logits=logits / temperature)
    tokens = logits.argmax(-1)
    sampler = drawn.log_prob(tokens)
    trainer = torch.log_softmax(logits / temperature, -1).gather(-1, tokens[:, None]).squeeze(-1)
    np.testing.assert_allclose(importance_weights(trainer, sampler, cap=2.0), 1.0, rtol=1e-9)
    if temperature != 1.0:
        cold = torch.log_softmax(logits, -1).gather(-1, tokens[:, None]).squeeze(-1)
        assert (importance_weights(cold, sampler, cap=10.0) - 1.0).abs().max() > 0.05


@given(st.lists(st.floats(-8, 0), min_size=2, max_size=6), st.lists(st.floats(-8, 0), min_size=6, max_size=6))
def test_k3_is_never_negative_and_its_mean_over_the_policy_is_the_kl(p_logits, q_logits):
    log_p = torch.log_softmax(tensor(p_logits), -1)
    log_q = torch.log_softmax(tensor(q_logits[: len(p_logits)]), -1)
    values = k3(log_p, log_q)
    assert (values >= 0).all()
    kl = (log_p.exp() * (log_p - log_q)).sum()
    torch.testing.assert_close((log_p.exp() * values).sum(), kl, rtol=1e-9, atol=1e-9)


@given(st.lists(st.floats(-8, 0), min_size=2, max_size=6), st.lists(st.floats(-8, 0), min_size=6, max_size=6))
def test_the_measured_kls_are_estimates_of_how_far_the_policy_has_moved(old_logits, new_logits):
    old = torch.log_softmax(tensor(old_logits), -1)
    new = torch.log_softmax(tensor(new_logits[: len(old_logits)]), -1)
    _, measured = importance_sampling(new, LossInputs(old, old, torch.ones_like(old)))
    kl = (old.exp() * (old - new)).sum()
    for name in ("approx_kl", "approx_kl_k1"):
        torch.testing.assert_close((old.exp() * measured[name]).sum(), kl, rtol=1e-9, atol=1e-9)
    assert (measured["approx_kl"] >= 0).all()


def test_small_divergences_are_not_lost_in_float32():
    # (r − 1) − log r of 1e-4 nats is 5e-9, less than float32 tells apart from exp(1e-4) − 1 − 1e-4.
    value = k3(tensor([-1.0], torch.float64), tensor([-1.0 + 1e-4], torch.float64)).item()
    small = k3(tensor([0.0], torch.float32), tensor([1e-4], torch.float32)).item()
    assert value == pytest.approx(5.00017e-9, rel=1e-4)
    assert small == pytest.approx(value, rel=0.01)


# --- the registry -----------------------------------------------------------------------------------------------


def test_the_built_in_losses_come_through_the_hook():
    plugins = PluginManager(load_installed=False)
    assert plugins.names("loss") == ["cross_entropy", "importance_sampling", "ppo"]
    assert plugins.get("loss", "ppo").settings is PpoSettings


@pytest.mark.parametrize("wrong", [{"clip_low": 1.0}, {"clip_low": -0.1}, {"clip_high": -0.1}, {"dual_clip": 1.0}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValidationError):
        PpoSettings(**wrong)
