"""The Triton kernels against the plain block, in Triton's interpreter: no GPU is needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from clocs.encoders.cnn import conv_block, conv_block_eval
from clocs.errors import SettingError
from clocs.kernels import keyed_random
from clocs.kernels.native import EPSILON, convolved
from clocs.training.signals import min_max


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    """The block's kernels in the interpreter."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: tests of trainings run these kernels on it")
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
    pytest.importorskip("triton", reason="needs triton: pip install triton")
    from clocs.kernels import layers_triton as fused

    return fused


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(
    ("length", "c_in", "c_out", "n", "of_input"),
    [
        (100, 1, 4, 3, True),
        (100, 1, 4, 3, False),
        (103, 1, 4, 3, False),
        (41, 4, 16, 3, True),
        (29, 16, 32, 2, True),
    ],
)
def test_the_fused_block_and_its_gradient_equal_the_plain_one(
    gpu: ModuleType, length: int, c_in: int, c_out: int, n: int, of_input: bool, dropout: float
) -> None:
    torch.manual_seed(length)
    inputs = [
        (torch.randn(shape) * scale).requires_grad_()
        for shape, scale in (
            ((2, n, length, c_in), 1.0),
            ((2, 7 * c_in, c_out), 0.3),
            ((2, c_out), 1.0),
            ((2, c_out), 1.0),
        )
    ]
    inputs[0].requires_grad_(of_input)  # without it, the first block has kernels of its own
    keys = keyed_random.member_keys([3, 4])
    steps = n * convolved(length)
    fused = gpu.TritonBlock.apply(*inputs, keys, dropout, steps / (steps - 1))
    plain = conv_block(inputs[0], inputs[1], inputs[2], inputs[3], keys, dropout)
    weight = torch.randn_like(fused[0])
    wanted = [x for x in inputs if x.requires_grad]
    by_fused = torch.autograd.grad((fused[0] * weight).sum(), wanted)
    by_plain = torch.autograd.grad((plain[0] * weight).sum(), wanted)
    for a, b in zip((*fused, *by_fused), (*plain, *by_plain), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5 * float(b.detach().abs().max()))


def test_the_fused_block_with_activations_in_bfloat16_is_the_same_but_for_rounding(
    gpu: ModuleType,
) -> None:
    torch.manual_seed(1)
    shapes = ((2, 3, 100, 1), (2, 7, 4), (2, 4), (2, 4))  # the interpreter has no such products
    exact = [torch.randn(shape).requires_grad_() for shape in shapes]
    half = [exact[0].detach().bfloat16(), *exact[1:]]
    keys = keyed_random.member_keys([3, 4])
    fused = gpu.TritonBlock.apply(*half, keys, 0.1, 96 / 95)
    assert [tensor.dtype for tensor in fused] == [torch.bfloat16, torch.float32, torch.float32]
    plain = conv_block(exact[0], exact[1], exact[2], exact[3], keys, 0.1)
    weight = torch.randn_like(plain[0])
    by_fused = torch.autograd.grad((fused[0].float() * weight).sum(), half[1:])
    by_plain = torch.autograd.grad((plain[0] * weight).sum(), exact[1:])
    for a, b in zip((*fused, *by_fused), (*plain, *by_plain), strict=True):
        apart = (a.float() - b).norm() / b.norm()
        assert apart < 0.03, apart


def test_the_fused_block_in_evaluation_equals_the_plain_one(gpu: ModuleType) -> None:
    torch.manual_seed(0)
    h, weight, scale, shift = (
        torch.randn(shape) for shape in ((2, 3, 41, 4), (2, 28, 16), (2, 16), (2, 16))
    )
    mean, variance = torch.zeros(2, 16), torch.full((2, 16), 1 - EPSILON)
    expected = conv_block_eval(h, weight, scale, shift, mean, variance)
    assert torch.allclose(gpu.triton_block_eval(h, weight, scale, shift), expected, atol=1e-5)


def test_gathered_windows_are_normalized_and_flat_ones_are_zero(gpu: ModuleType) -> None:
    from clocs.kernels.windows_triton import normalized_windows

    flat = torch.randint(-500, 500, (1000,), dtype=torch.int16)
    flat[100:200] = 7
    starts = torch.tensor([[0, 5], [100, 300]])
    windows = normalized_windows(flat, starts, 90)
    assert torch.equal(windows, min_max(flat.unfold(0, 90, 1)[starts].float()))
    assert (windows[1, 0] == 0).all()


def test_more_views_than_a_kernel_can_count_are_refused(gpu: ModuleType) -> None:
    h = torch.zeros(1, 1, 1, 1).expand(1, 2**20, 2500, 1)  # takes no memory
    weight, scale = torch.zeros(1, 7, 4), torch.zeros(1, 4)
    keys = keyed_random.member_keys([1])
    with pytest.raises(SettingError, match=r"1,048,576 views .* smaller batch size"):
        gpu.TritonBlock.apply(h, weight, scale, scale, keys, 0.0, 1.0)
    with pytest.raises(SettingError, match="smaller batch size"):
        gpu.triton_block_eval(h, weight, scale, scale)


@pytest.mark.parametrize(("n", "c_in", "c_out"), [(70, 40, 24), (33, 64, 96)])
def test_the_layer_and_its_gradient_equal_torchs(
    device: torch.device, n: int, c_in: int, c_out: int
) -> None:
    from clocs.kernels.layers_triton import LinearReLU

    layer: Callable[..., torch.Tensor] = LinearReLU.apply
    torch.manual_seed(n)
    shapes = ((2, n, c_in), (2, c_in, c_out), (2, c_out))
    inputs = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    ours = [x.detach().float().to(device).requires_grad_() for x in inputs]
    expected = torch.baddbmm(inputs[2][:, None], inputs[0], inputs[1]).relu()
    found = layer(*ours)
    weight = torch.randn_like(expected)
    by_torch = torch.autograd.grad((expected * weight).sum(), inputs)
    by_kernel = torch.autograd.grad((found * weight.float().to(device)).sum(), ours)
    for a, b in zip((found, *by_kernel), (expected, *by_torch), strict=True):
        assert torch.allclose(
            a.cpu().double(), b, rtol=1e-4, atol=1e-5 * float(b.detach().abs().max())
        )


def test_what_is_no_number_stays_none(device: torch.device) -> None:
    from clocs.kernels.layers_triton import LinearReLU

    layer: Callable[..., torch.Tensor] = LinearReLU.apply
    h, weight, bias = torch.randn(2, 3, 16), torch.randn(2, 16, 16), torch.randn(2, 16)
    h[1, 2, 3] = torch.nan
    found = layer(h.to(device), weight.to(device), bias.to(device))
    assert found.isfinite().all(dim=2).tolist() == [[True] * 3, [True, True, False]]
