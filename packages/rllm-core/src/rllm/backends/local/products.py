"""Float32 matrix products by oneDNN instead of torch's own, where those are slower or not even.

torch multiplies float32 matrices by MKL, which leaves AVX-512 unused on AMD's processors; oneDNN, which comes with
torch too, uses it (measured on an EPYC: 2.0 to 2.8 times as fast, forward and backward). On Intel's, MKL is as fast as
oneDNN, but takes other kernels for few rows than for many, so that a token's bits depend on its company. oneDNN's don't
on either. Both are float32 throughout.
"""

__all__ = ["Multiply", "OneDnnLinear", "StandInLinear", "by_bf16", "by_onednn", "by_torch", "replace_linears"]

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Multiply = Callable[[Tensor, Tensor], Tensor]
"""x wᵀ of float32 [..., K] and [N, K]; no gradient."""


def by_torch(x: Tensor, weight: Tensor) -> Tensor:
    """As ``nn.Linear`` has it."""
    return F.linear(x, weight)


def by_onednn(x: Tensor, weight: Tensor) -> Tensor:
    """The same by oneDNN, on the CPU. Transposed views will do, and cost no copy here."""
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, None, "none", [], "")  # what torch.compile calls


def by_bf16(x: Tensor, weight: Tensor) -> Tensor:
    """The same of the two rounded to bfloat16, the result as well."""
    return F.linear(x.to(torch.bfloat16), weight.to(torch.bfloat16)).float()


class StandInLinear(nn.Linear):
    """A linear layer in the place of another, whose products a subclass makes."""

    has_bias: bool

    @classmethod
    def of(cls, linear: nn.Linear) -> Self:
        """Shares ``linear``'s parameters."""
        made = cls(linear.in_features, linear.out_features, bias=False, device="meta")
        made.weight, made.bias = linear.weight, linear.bias
        made.has_bias = made.bias is not None  # pyright: ignore[reportUnnecessaryComparison]
        made.train(linear.training)
        return made

    def product(self, x: Tensor) -> Tensor:
        """x wᵀ, with gradients."""
        raise TypeError(f"{type(self).__name__} does not say how it multiplies")

    def forward(self, input: Tensor) -> Tensor:
        product = self.product(input)
        return product + self.bias if self.has_bias else product


class OneDnnLinear(StandInLinear):
    """A linear layer whose products, forward and backward, are oneDNN's."""

    def product(self, x: Tensor) -> Tensor:
        product: Tensor = _Product.apply(x, self.weight)  # pyright: ignore
        return product


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return by_onednn(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        g = gradients[0]
        to_x = by_onednn(g, weight.t()) if ctx.needs_input_grad[0] else None
        to_weight = by_onednn(g.flatten(0, -2).t(), x.flatten(0, -2).t()) if ctx.needs_input_grad[1] else None
        return to_x, to_weight


def replace_linears(model: nn.Module, head: nn.Module, of: Callable[[nn.Linear], nn.Linear]) -> None:
    """Put ``of(layer)`` in the place of every linear layer of ``model`` but ``head``."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child is not head:
                setattr(parent, name, of(child))
