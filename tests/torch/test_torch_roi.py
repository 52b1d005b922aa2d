"""minicaffe.torch's ROI operators: gradients against numbers, values against minicaffe.ops, the old names, types, rois, nms."""

from __future__ import annotations

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch (the extra torch) is not installed")

import minicaffe  # noqa: E402
from minicaffe import ops  # noqa: E402
from minicaffe import torch as mt  # noqa: E402
from minicaffe.cuda.device import current  # noqa: E402
from minicaffe.errors import Error  # noqa: E402
from minicaffe.layers.roi.psroi_align import PsRoiAlign  # noqa: E402
from minicaffe.layers.roi.psroi_pooling import PsRoiPool  # noqa: E402
from minicaffe.layers.roi.roi_align_max import RoiAlignMax  # noqa: E402
from minicaffe.layers.roi.roi_align_mean import RoiAlign  # noqa: E402
from minicaffe.layers.roi.roi_pooling import RoiPool  # noqa: E402
from minicaffe.torch import roi_gpu  # noqa: E402

ROIS = torch.tensor([[0, 3, 5, 40, 60], [1, 10.3, 2, 50, 33], [1, 0, 0, 5, 5]], dtype=torch.float64)
SCALE = 0.2

OPERATORS = {
    "roi_pool": lambda x, rois: mt.roi_pool(x, rois, (2, 3), SCALE),
    "roi_align": lambda x, rois: mt.roi_align(x, rois, (2, 3), SCALE, 2),
    "roi_align, adaptive and aligned": lambda x, rois: mt.roi_align(x, rois, (3, 2), SCALE, aligned=True),
    "roi_align_max": lambda x, rois: mt.roi_align_max(x, rois, (2, 3), SCALE),
    "ps_roi_pool": lambda x, rois: mt.ps_roi_pool(x, rois, 2, SCALE),
    "ps_roi_align": lambda x, rois: mt.ps_roi_align(x, rois, 2, SCALE, 3),
}
ON_ARRAYS = {
    "roi_pool": lambda x, rois: ops.roi_pool(x, rois, 2, 3, SCALE),
    "roi_align": lambda x, rois: ops.roi_align(x, rois, 2, 3, SCALE, sampling_ratio=2),
    "roi_align, adaptive and aligned": lambda x, rois: ops.roi_align(x, rois, 3, 2, SCALE, aligned=True),
    "roi_align_max": lambda x, rois: ops.roi_align_max(x, rois, 2, 3, SCALE),
    "ps_roi_pool": lambda x, rois: ops.ps_roi_pool(x, rois, 2, SCALE),
    "ps_roi_align": lambda x, rois: ops.ps_roi_align(x, rois, 2, SCALE, 3),
}
each = pytest.mark.parametrize("name", OPERATORS)


def feature_map(dtype=torch.float64, channels=8):
    return torch.from_numpy(np.random.default_rng(3).normal(size=(2, channels, 9, 11))).to(dtype)


@each
def test_gradient_check(name):
    x = feature_map()[:, :4, :6, :7].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: OPERATORS[name](x, ROIS), (x,))


@each
def test_values_are_those_of_ops(name):
    x = feature_map(torch.float32)
    y = OPERATORS[name](x, ROIS)
    np.testing.assert_array_equal(y.numpy(), ON_ARRAYS[name](x.numpy(), ROIS.float().numpy()))


@each
def test_no_second_gradient_and_none_for_the_rois(name):
    x, rois = feature_map().requires_grad_(), ROIS.clone().requires_grad_()
    (dx,) = torch.autograd.grad(OPERATORS[name](x, rois).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()
    assert rois.grad is None


@each
def test_no_rois(name):
    x = feature_map().requires_grad_()
    y = OPERATORS[name](x, torch.zeros(0, 5))
    y.sum().backward()
    assert len(y) == 0 and not x.grad.any()


@each
def test_a_map_that_is_not_contiguous_and_an_expanded_gradient(name):
    x = feature_map()
    last = x.to(memory_format=torch.channels_last).requires_grad_()
    plain = x.clone().requires_grad_()
    for given in (last, plain):
        OPERATORS[name](given, ROIS).sum().backward()
    np.testing.assert_array_equal(last.grad.numpy(), plain.grad.numpy())


@each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
def test_half_is_computed_in_float(name, dtype, autocast):
    x = feature_map(dtype).requires_grad_()
    reference = x.detach().float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        y = OPERATORS[name](x, ROIS)
    z = OPERATORS[name](reference, ROIS)
    assert y.dtype == dtype and torch.equal(y, z.to(dtype))
    weight = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(dtype)
    y.backward(weight)
    z.backward(weight.float())
    assert x.grad.dtype == dtype and torch.equal(x.grad, reference.grad.to(dtype))


def test_under_autocast_after_a_convolution():
    convolution = torch.nn.Conv2d(3, 4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = mt.roi_pool(convolution(torch.randn(1, 3, 8, 9)), torch.tensor([[0.0, 0, 5, 5]]), 2)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert convolution.weight.grad.dtype == torch.float32


# The old names.


def test_the_old_names_compute_roi_pool():
    x, want = feature_map(), mt.roi_pool(feature_map(), ROIS, (2, 3), SCALE)
    for made in (mt._RoIPooling(2, 3, SCALE), mt.RoIPoolFunction(2, 3, SCALE), mt.RoIPool((2, 3), SCALE)):
        assert torch.equal(made(x, ROIS), want)
    module = mt._RoIPooling(2, 3, SCALE)
    assert (module.pooled_height, module.pooled_width, module.spatial_scale) == (2, 3, SCALE)


def test_modules_compute_their_functions():
    x = feature_map()
    for module, y in (
        (mt.ROIAlign((2, 3), SCALE, 2), OPERATORS["roi_align"](x, ROIS)),
        (mt.ROIAlign((3, 2), SCALE, 0, aligned=True), OPERATORS["roi_align, adaptive and aligned"](x, ROIS)),
        (mt.RoIAlignMax((2, 3), SCALE), OPERATORS["roi_align_max"](x, ROIS)),
        (mt.PSRoIPool(2, SCALE), OPERATORS["ps_roi_pool"](x, ROIS)),
        (mt.PSRoIAlign(2, SCALE, 3), OPERATORS["ps_roi_align"](x, ROIS)),
    ):
        assert torch.equal(module(x, ROIS), y), module


def test_texts():
    assert repr(mt.ROIAlign((7, 7), 0.0625, 2)) == "ROIAlign(output_size=(7, 7), spatial_scale=0.0625, sampling_ratio=2)"
    assert repr(mt.ROIAlign(7, 0.25, 0, True)) == (
        "ROIAlign(output_size=7, spatial_scale=0.25, sampling_ratio=0, aligned=True)"
    )
    assert repr(mt.RoIPool(7, 0.5)) == "RoIPool(output_size=7, spatial_scale=0.5)"
    assert repr(mt.PSRoIAlign(7, 0.5)) == "PSRoIAlign(group_size=7, spatial_scale=0.5, sample_num=2)"


def test_one_number_is_both_sizes():
    x = feature_map()
    for size in (3, np.int64(3), [3, 3]):
        assert torch.equal(mt.roi_align(x, ROIS, size, SCALE), mt.roi_align(x, ROIS, (3, 3), SCALE))


# Rois.


def test_rois_of_four_columns_are_of_image_0():
    boxes = torch.tensor([[0.0, 0, 20, 30], [5, 5, 40, 40]])
    five = torch.cat([torch.zeros(2, 1), boxes], 1)
    x = feature_map()
    assert torch.equal(mt.roi_pool(x, boxes, 2, SCALE), mt.roi_pool(x, five, 2, SCALE))
    assert torch.equal(mt.roi_pool(x, five[:, :, None, None], 2, SCALE), mt.roi_pool(x, five, 2, SCALE))


def test_a_list_has_the_boxes_of_each_image():
    x, first, second = feature_map(), ROIS[:1, 1:], ROIS[1:, 1:]
    assert mt.ps_roi_align(x[:0], [], 2, SCALE).shape == (0, 2, 2, 2)
    assert torch.equal(mt.ps_roi_align(x, [first, second], 2, SCALE), mt.ps_roi_align(x, ROIS, 2, SCALE))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: mt.roi_pool(x, torch.zeros(2, 6), 2), r"rois must have shape \(R, 5\) or \(R, 4\), got \(2, 6\)"),
        (lambda x: mt.roi_pool(x, [torch.zeros(2, 4)], 2), "one tensor for each image: got 1 for 2 images"),
        (lambda x: mt.roi_pool(x, [torch.zeros(2, 4), torch.zeros(2, 5)], 2), r"rois\[1\] must have shape \(R, 4\)"),
        (lambda x: mt.roi_pool(x[0], ROIS, 2), r"\(N, C, H, W\), got torch.float64 of shape \(8, 9, 11\)"),
        (lambda x: mt.roi_pool(x.int(), ROIS, 2), "must be a floating-point tensor"),
        (lambda x: mt.roi_pool(x.numpy(), ROIS, 2), "got ndarray"),
        (lambda x: mt.roi_pool(x, ROIS, 0), "pooled_h must be > 0, got 0"),
        (lambda x: mt.roi_pool(x, ROIS, 2.5), "an output size is a whole number, or two: height and width; got 2.5"),
        (lambda x: mt.roi_pool(x, ROIS, (2, 3, 4)), r"got \(2, 3, 4\)"),
        (lambda x: mt.roi_pool(x, ROIS + 5, 2), "roi 0"),
        (lambda x: mt.ps_roi_pool(x, ROIS, 3), "8 channels are not a multiple of group_size"),
    ],
)
def test_errors(call, message):
    with pytest.raises(Error, match=message):
        call(feature_map())


# nms.

BOXES = torch.tensor([[0.0, 0, 9, 9], [1, 1, 9, 9], [20, 20, 30, 30]])
SCORES = torch.tensor([0.5, 0.9, 0.3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_nms(dtype):
    boxes, scores = BOXES.to(dtype), SCORES.to(dtype)
    assert mt.nms(boxes, scores, 0.5).tolist() == [1, 2]
    assert mt.nms(torch.cat([boxes, scores[:, None]], 1), 0.5).tolist() == [1, 2]
    assert mt.nms(boxes, scores, 0.9).tolist() == [1, 0, 2]
    assert mt.nms(boxes[:0], scores[:0], 0.5).dtype == torch.int64


def test_nms_errors():
    with pytest.raises(Error, match="there is no threshold"):
        mt.nms(BOXES, SCORES)
    with pytest.raises(Error, match=r"boxes must be \(N, 4\) and scores \(N,\), got \(3, 4\) and \(2,\)"):
        mt.nms(BOXES, SCORES[:2], 0.5)


# torchvision, where it is installed: its roi_align is ours.


@pytest.mark.parametrize(("ratio", "aligned"), [(2, False), (-1, False), (0, True)])
def test_roi_align_is_torchvisions(ratio, aligned):
    torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")
    x, y = (feature_map().requires_grad_() for _ in range(2))
    ours = mt.roi_align(x, ROIS, (2, 3), SCALE, ratio, aligned)
    theirs = torchvision.ops.roi_align(y, ROIS, (2, 3), SCALE, ratio, aligned)
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-12, atol=1e-12)
    for result in (ours, theirs):
        result.square().sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-11, atol=1e-12)


# The kernels, on tensors of the GPU, or of the CPU where that is the test device.

GRID = {"pooled_h": 2, "pooled_w": 3, "spatial_scale": SCALE}
KERNELS = {
    "roi_pool": RoiPool(**GRID),
    "roi_align": RoiAlign(**GRID, sampling_ratio=2),
    "roi_align, adaptive and aligned": RoiAlign(pooled_h=3, pooled_w=2, spatial_scale=SCALE, aligned=True),
    "roi_align_max": RoiAlignMax(**GRID),
    "ps_roi_pool": PsRoiPool(group_size=2, spatial_scale=SCALE),
    "ps_roi_align": PsRoiAlign(group_size=2, spatial_scale=SCALE, sample_num=3),
}


@pytest.fixture
def place():
    if torch.cuda.is_available():
        return "cuda"
    if not current().name.startswith("CPU test device"):
        pytest.skip("this PyTorch has no CUDA")
    return "cpu"


@pytest.mark.gpu
@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_kernels_on_the_memory_of_tensors(name, dtype, place):
    operator, x, rois = KERNELS[name], feature_map(dtype).to(place), ROIS.to(place, dtype)
    y = roi_gpu.pool_on_gpu(operator, x, rois)
    want, saved = operator.forward(x.cpu().numpy(), rois.cpu().numpy(), with_argmax=True)
    np.testing.assert_allclose(y.cpu().numpy(), want, rtol=1e-5, atol=1e-6)
    dy = torch.linspace(-1, 1, y.numel(), dtype=dtype, device=place).reshape(y.shape)
    dx = roi_gpu.backward_on_gpu(operator, dy, x, rois)
    want = operator.backward(dy.cpu().numpy(), saved)
    np.testing.assert_allclose(dx.cpu().numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
def test_kernels_report_bad_rois(place):
    with pytest.raises(Error, match="roi 1 is bad"):
        roi_gpu.pool_on_gpu(
            KERNELS["roi_pool"],
            feature_map().to(place),
            torch.tensor([[0, 1, 1, 5, 5], [2, 1, 1, 5, 5]], dtype=torch.float64, device=place),
        )


@pytest.mark.gpu
def test_kernels_without_rois(place):
    operator, x = KERNELS["ps_roi_align"], feature_map().to(place)
    y = roi_gpu.pool_on_gpu(operator, x, x.new_zeros(0, 5))
    assert y.shape == (0, 2, 2, 2)
    assert not roi_gpu.backward_on_gpu(operator, y, x, x.new_zeros(0, 5)).any()


@pytest.mark.gpu
@pytest.mark.parametrize("name", KERNELS)
def test_a_call_allocates_and_clears_nothing(name, place, monkeypatch):
    operator, x, rois = KERNELS[name], feature_map().to(place), ROIS.to(place)
    for _ in range(2):
        y = roi_gpu.pool_on_gpu(operator, x, rois)
        dx = roi_gpu.backward_on_gpu(operator, y, x, rois)

    def unwanted(*arguments):
        raise AssertionError("memory is allocated, cleared, or waited for")

    gpu = current()
    for owner, method in ((gpu, "allocate"), (gpu, "zero"), (gpu, "order"), (gpu._pool, "_settle"), (torch, "zeros_like")):
        monkeypatch.setattr(owner, method, unwanted)
    assert torch.equal(roi_gpu.pool_on_gpu(operator, x, rois), y)
    assert torch.equal(roi_gpu.backward_on_gpu(operator, y, x, rois), dx)


@pytest.mark.gpu
def test_a_bad_roi_is_raised_in_the_thread_that_has_it(place):
    """Eight threads at once; in those of odd numbers the roi of the thread's number is bad."""
    x, said, barrier = feature_map().to(place), [""] * 8, threading.Barrier(8)

    def work(number):
        rois = ROIS[:1].repeat(9, 1)
        rois[number, 0] = 5 * (number % 2)
        rois = rois.to(place)
        barrier.wait()
        for _ in range(10):
            try:
                roi_gpu.pool_on_gpu(KERNELS["roi_pool"], x, rois)
                said[number] += "fine "
            except Error as error:
                said[number] += f"{str(error).partition(' is')[0]} "

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [10 * (f"roi {number} " if number % 2 else "fine ") for number in range(8)]


def test_it_is_an_attribute_of_minicaffe():
    assert minicaffe.torch is mt
