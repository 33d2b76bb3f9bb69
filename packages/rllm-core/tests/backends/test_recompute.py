"""Norms and gated MLPs that keep their inputs alone: the same numbers, the same gradients, less kept."""

import pytest
import torch
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from rllm.backends.local.machine import saved_bytes
from rllm.backends.local.precision import MixedLinear
from rllm.backends.local.products import replace_linears
from rllm.backends.local.recompute import keep_less

CPU = torch.device("cpu")
WIDTH, INNER, TOKENS = 16, 40, 6


def mlp() -> LlamaMLP:
    torch.manual_seed(0)
    return LlamaMLP(LlamaConfig(hidden_size=WIDTH, intermediate_size=INNER, num_attention_heads=2))


def inputs() -> torch.Tensor:
    return torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1), requires_grad=True)


def gradients(module: torch.nn.Module) -> list[torch.Tensor]:
    """The output, and those of the input and of each parameter."""
    x = inputs()
    y = module(x)
    return [y, *torch.autograd.grad((y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum(), [x, *module.parameters()])]


def kept(module: torch.nn.Module) -> int:
    return saved_bytes(lambda: module(inputs()), [*module.parameters(), *module.buffers()])


@pytest.mark.parametrize("make", [mlp, lambda: LlamaRMSNorm(WIDTH)])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_the_same_numbers_and_gradients_and_less_kept(make, is_mixed):
    modules = [make(), make()]
    if is_mixed:
        for module in modules:
            replace_linears(module, module, MixedLinear.of)
    plain, less = modules
    keep_less(less, CPU)
    assert all(torch.equal(a, b) for a, b in zip(gradients(plain), gradients(less), strict=True))
    assert kept(less) < 0.8 * kept(plain)


def test_a_gated_mlp_keeps_what_its_layers_need_and_no_more():
    module = mlp()
    replace_linears(module, module, MixedLinear.of)
    keep_less(module, CPU)
    # In bfloat16: the input once for two layers; gate, up and their product.
    assert kept(module) == 2 * TOKENS * (WIDTH + 3 * INNER)


def test_a_module_with_the_names_of_a_gated_mlp_and_other_arithmetic_is_left_alone():
    class Doubled(LlamaMLP):
        def forward(self, x):
            return 2 * super().forward(x)

    module = Doubled(mlp().config)
    expected = module(inputs())
    keep_less(module, CPU)
    assert "forward" not in vars(module)
    assert torch.equal(module(inputs()), expected)


def test_frozen_weights_get_no_gradient():
    norm = LlamaRMSNorm(WIDTH)
    norm.weight.requires_grad_(False)
    keep_less(norm, CPU)
    x = inputs()
    norm(x).sum().backward()
    assert x.grad is not None
    assert norm.weight.grad is None
