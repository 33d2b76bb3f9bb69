"""What is cheap to compute is computed again in the backward, not kept for it: norms, and the products of gated MLPs.

A training step of SmolLM2-135M keeps half as much so, and takes no longer: what is not kept need not be written.
"""

__all__ = ["keep_less"]

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rllm.backends.local.precision import MixedLinear

Unary = Callable[[Tensor], Tensor]

PARTS = ("gate_proj", "up_proj", "down_proj", "act_fn")
"""What transformers calls the parts of a gated MLP: down(act(gate(x)) × up(x))."""


def keep_less(network: nn.Module, device: torch.device) -> None:
    """Have the norms and gated MLPs of ``network`` keep their inputs alone."""
    for module in network.modules():
        if type(module).__name__.endswith("Norm") and not list(module.children()):
            module.forward = _norm(module.forward, list(module.parameters()))
        elif all(hasattr(module, part) for part in PARTS) and _is_gated(module, device):
            module.forward = _gated_mlp(module)


def _norm(forward: Unary, weights: list[nn.Parameter]) -> Unary:
    def run(x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return forward(x)
        found: Tensor = _Again.apply(forward, x, *weights)  # pyright: ignore
        return found

    return run


def _gated_mlp(module: Any) -> Unary:
    def run(x: Tensor) -> Tensor:
        gate, up = module.gate_proj(x), module.up_proj(x)
        if not torch.is_grad_enabled():
            return module.down_proj(module.act_fn(gate) * up)
        are_rounded = all(type(p) is MixedLinear and not p.has_bias for p in (module.gate_proj, module.up_proj))
        return module.down_proj(_Gated.apply(module.act_fn, gate, up, are_rounded))  # pyright: ignore

    return run


@torch.no_grad()
def _is_gated(module: Any, device: torch.device) -> bool:
    """Whether the module does what its parts' names say, to the bit, on something arbitrary."""
    weight = next(module.gate_proj.parameters())
    x = torch.linspace(-2, 2, 3 * weight.shape[-1], device=device, dtype=weight.dtype).view(1, 3, -1)
    theirs = module(x)
    return isinstance(theirs, Tensor) and torch.equal(theirs, _gated_mlp(module)(x))


class _Again(torch.autograd.Function):
    """``run(x)``, which depends on ``weights``."""

    @staticmethod
    def forward(ctx: Any, run: Unary, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, *weights)
        ctx.run = run
        return run(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        saved, *weights = ctx.saved_tensors
        with torch.enable_grad():
            x = saved.detach().requires_grad_(ctx.needs_input_grad[1])
            wanted = [t for t, is_wanted in zip((x, *weights), ctx.needs_input_grad[1:], strict=True) if is_wanted]
            found = iter(torch.autograd.grad(ctx.run(x), wanted, gradients[0]))
        return None, *(next(found) if is_wanted else None for is_wanted in ctx.needs_input_grad[1:])


class _Gated(torch.autograd.Function):
    """act(gate) × up. ``are_rounded``: both are bfloat16 numbers, so nothing is lost when they are kept as such."""

    @staticmethod
    def forward(ctx: Any, act: Unary, gate: Tensor, up: Tensor, are_rounded: bool) -> Tensor:
        ctx.save_for_backward(*((t.to(torch.bfloat16) for t in (gate, up)) if are_rounded else (gate, up)))
        ctx.act, ctx.dtype = act, gate.dtype
        return act(gate) * up

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        with torch.enable_grad():
            gate, up = (t.detach().to(ctx.dtype).requires_grad_() for t in ctx.saved_tensors)
            to_gate, to_up = torch.autograd.grad(ctx.act(gate) * up, (gate, up), gradients[0])
        return None, to_gate, to_up, None
