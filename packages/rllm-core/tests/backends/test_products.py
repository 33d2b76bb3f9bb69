"""oneDNN's float32 products are float32 products: as near to the exact ones as torch's, forward and backward."""

import pytest
import torch

from rllm.backends.local.machine import onednn_gain
from rllm.backends.local.precision import rounded_once
from rllm.backends.local.products import OneDnnLinear, by_onednn, by_torch

pytestmark = pytest.mark.skipif(onednn_gain(64, repeats=1) == 0, reason="this torch has no oneDNN")


@pytest.mark.parametrize(("rows", "width", "out"), [(4, 64, 192), (64, 576, 192), (20, 192, 576), (300, 64, 1000)])
def test_a_product_is_exact_to_a_few_roundings(rows, width, out):
    torch.manual_seed(0)
    x, weight = torch.randn(rows, width), torch.randn(out, width)
    exact = x.double() @ weight.double().T
    scale = x.abs().double() @ weight.abs().double().T
    for multiply in (by_torch, by_onednn):
        # The bound of a sum of `width` float32 products in any order (Higham, ch. 3) is width × 6e-8.
        assert ((multiply(x, weight) - exact).abs() <= width * 6e-8 * scale).all()


@pytest.mark.parametrize("bias", [True, False])
def test_a_layers_gradients_are_torchs(bias):
    torch.manual_seed(0)
    plain = torch.nn.Linear(48, 80, bias=bias)
    ours = OneDnnLinear.of(plain)
    x = torch.randn(3, 8, 48, requires_grad=True)
    seed = torch.randn(3, 8, 80)
    found = []
    for layer in (plain, ours):
        leaves = [x, *plain.parameters()]
        for leaf in leaves:
            leaf.grad = None
        y = layer(x)
        y.backward(seed)
        found.append([y.detach(), *(leaf.grad.clone() for leaf in leaves)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert ours.weight is plain.weight


def test_a_tensor_is_rounded_once_until_it_is_written_to():
    x = torch.randn(4, 8)
    first = rounded_once(x)
    assert rounded_once(x) is first
    assert torch.equal(first, x.to(torch.bfloat16))
    x.mul_(2)
    assert torch.equal(rounded_once(x), x.to(torch.bfloat16))
