"""Convolutions on the GPU against those of the CPU: all ways without cuDNN, by our kernel and by what cuBLAS is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest
from cublas_stand_in import StandIn, installed
from layer_case import LayerCase

import minicaffe
from minicaffe.blob import MemoryState
from minicaffe.cuda import blas, convolution, cudnn
from minicaffe.cuda.device import current
from minicaffe.layers.conv.window import Window

pytestmark = pytest.mark.gpu

CASES = [  # fields, the bottom's shape
    ("num_output: 6 kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 pad_h: 1 pad_w: 2", (3, 4, 7, 5)),
    ("num_output: 6 kernel_size: 3 pad: 2 dilation: 2 group: 2", (5, 4, 6, 7)),
    ("num_output: 8 kernel_size: 2 stride: 3 group: 4", (2, 8, 7, 6)),
    ("num_output: 6 kernel_size: 1", (3, 5, 4, 7)),
    ("num_output: 6 kernel_size: 1 group: 3", (2, 9, 4, 7)),
    ("num_output: 6 kernel_size: 1 group: 3", (5, 9, 1, 1)),
    ("num_output: 6 kernel_size: 3 group: 2", (5, 4, 3, 3)),
    ("num_output: 6 kernel_size: 1 stride: 2 pad: 1", (2, 4, 5, 7)),
    ("num_output: 8 kernel_size: 3 pad: 1 stride: 2 group: 4", (3, 4, 5, 7)),
    ("num_output: 4 kernel_size: 4 pad: 1 stride: 2 group: 4", (2, 4, 5, 7)),
    ("num_output: 3 kernel_size: 3 pad: 1", (2, 4, 9)),
    ("num_output: 3 kernel_size: 2 stride: 2", (2, 4, 3, 5, 6)),
    ("num_output: 3 kernel_size: 2 group: 1", (2, 4, 3, 4, 2, 3)),
    ("num_output: 3 axis: -1", (4, 5, 6)),
]


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cudnn._state, "allowed", False)
    minicaffe.set_mode_gpu()
    yield
    minicaffe.set_mode_cpu()


@pytest.fixture(params=["kernel", "cuBLAS"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StandIn | None:
    """What multiplies: whatever is there, or the stand-in for cuBLAS."""
    return installed(monkeypatch) if request.param == "cuBLAS" else None


def results(text: str, shape: tuple[int, ...], dtype: Any) -> list[np.ndarray]:
    """y, dx and the weights' gradients in the mode that is set, the weights' on top of what their diffs held."""
    rng = np.random.default_rng(1)
    case = LayerCase(text, rng.normal(size=shape), dtype=dtype)
    for blob in case.layer.blobs:
        blob.data[...] = rng.normal(size=blob.shape)
        blob.diff[...] = rng.normal(size=blob.shape)
    (y,) = case.forward()
    (dx,) = case.backward(rng.normal(size=y.shape))
    return [y, dx, *(blob.diff.copy() for blob in case.layer.blobs)]


@pytest.mark.parametrize(("workspace", "small"), [(64 << 20, 4096), (4000, 4096), (4000, 0), (1, 0)])
@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
def test_as_on_the_cpu(library: StandIn | None, kind: str, workspace: int, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "WORKSPACE", workspace)
    monkeypatch.setattr(convolution, "SMALL", small)
    for (inside, shape), dtype in zip(CASES, [np.float32, np.float64] * len(CASES)):
        text = f'type: "{kind}" convolution_param {{ {inside} }}'
        minicaffe.set_mode_cpu()
        expected = results(text, shape, np.float64)
        minicaffe.set_mode_gpu()
        got = results(text, shape, dtype)
        for ours, theirs in zip(got, expected, strict=True):
            assert ours.dtype == dtype
            np.testing.assert_allclose(
                ours, theirs, rtol=0, atol=(1e-5 if dtype == np.float32 else 1e-12) * np.abs(theirs).max()
            )
        assert all(np.array_equal(a, b) for a, b in zip(got, results(text, shape, dtype), strict=True))  # bit for bit


def test_launches_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch takes one im2col, one product and one bias; nothing but the inputs moves, and nothing waits."""
    fillers = 'weight_filler { type: "xavier" } bias_filler { value: 1 }'  # zeros would not be moved
    text = f'type: "Convolution" convolution_param {{ num_output: 5 kernel_size: 3 {fillers} }}'
    case = LayerCase(text, np.ones((4, 3, 7, 6)))
    sent: list[str] = []
    monkeypatch.setattr(convolution, "launch", lambda kernel, *rest: sent.append(kernel))
    monkeypatch.setattr(convolution, "launch_planes", lambda kernel, *rest: sent.append(kernel))
    monkeypatch.setattr(convolution, "gemm", lambda *rest, **options: sent.append("gemm"))
    transfers = current().transfers
    transfers.reset()
    case.layer.forward_pass(case.bottom, case.top)
    assert sent == ["im2col.im2col", "gemm", "scale.scale"]
    learnt = sum(blob.count for blob in case.layer.blobs)
    assert (transfers.to_device, transfers.to_host) == (8 * (case.bottom[0].count + learnt), 0)
    assert case.top[0].data_state is MemoryState.DEVICE


def test_the_workspace_is_one() -> None:
    """Layers of a stream share it; it grows, and stays within the limit whatever the batch."""
    stream = current().current_stream
    small = stream.workspace(1000)
    assert stream.workspace(10) == small
    maps = convolution.Maps(np.dtype(np.float32), window((3, 3)), 1, 1000, 64, 64, (100, 100))
    sizes = [(part.images, part.windows) for part in convolution._parts(maps)]
    assert sum(images * windows for images, windows in sizes) == 1000 * 98 * 98
    assert max(images * windows for images, windows in sizes) * 64 * 9 * 4 <= convolution.WORKSPACE


def window(kernel: tuple[int, ...]) -> Any:
    ones = (1,) * len(kernel)
    return Window(kernel, ones, (0,) * len(kernel), ones)


@pytest.mark.gpu_barrier
def test_sums_of_the_weights_gradients_have_no_races() -> None:
    text = 'type: "Convolution" convolution_param { num_output: 2 kernel_size: 2 group: 2 }'
    minicaffe.set_mode_cpu()
    expected = results(text, (2, 2, 4, 5), np.float64)
    minicaffe.set_mode_gpu()
    for ours, theirs in zip(results(text, (2, 2, 4, 5), np.float64), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize(
    ("channels", "outputs", "stride", "exact", "tf32"),
    [
        (64, 128, 1, {"weight"}, set()),
        (64, 256, 1, {"forward", "weight"}, set()),
        (256, 64, 1, {"data", "weight"}, set()),
        (64, 128, 2, {"data", "weight"}, set()),
        (7, 64, 1, {"data", "weight"}, {"data", "weight"}),
        (3, 256, 2, {"data", "weight"}, {"data", "weight"}),
    ],
)
def test_what_a_product_does_better_than_cudnn(
    channels: int, outputs: int, stride: int, exact: set[str], tf32: set[str]
) -> None:
    window = Window((3, 3), (stride, stride), (1, 1), (1, 1))
    maps = convolution.Maps(np.dtype(np.float32), window, 1, 1, channels, outputs, (9, 11))
    for allowed, expected in ((False, exact), (True, tf32)):
        found = {kind for kind in get_args(cudnn.Kind) if convolution._better_as_product(kind, maps, allowed)}
        assert found == expected


def test_backend_is_said() -> None:
    assert blas.backend().startswith(("cuBLAS (", "gemm.cu ("))


@pytest.mark.parametrize(
    ("text", "bottoms"),
    [
        ('type: "Convolution" convolution_param { num_output: 4 kernel_size: 2 group: 2 }', [np.ones((2, 6, 3, 4))]),
        ('type: "InnerProduct" inner_product_param { num_output: 4 }', [np.ones((2, 6))]),
        ('type: "Embed" embed_param { num_output: 4 input_dim: 3 }', [np.array([2, 0, 2])]),
        ('type: "BatchReindex"', [np.ones((2, 3)), np.array([1, 1, 0])]),
    ],
)
def test_the_mode_may_change_in_between(text: str, bottoms: list[np.ndarray]) -> None:
    """Forward on one, backward on the other."""
    case = LayerCase(text, *bottoms)
    rng = np.random.default_rng(2)
    for blob in case.layer.blobs:
        blob.data[...] = rng.normal(size=blob.shape)
    dy = rng.normal(size=case.top[0].shape)
    results = []
    for forward_on_gpu, backward_on_gpu in ((False, False), (True, False), (False, True), (True, True)):
        for blob in case.layer.blobs:
            blob.diff[...] = 1
        (minicaffe.set_mode_gpu if forward_on_gpu else minicaffe.set_mode_cpu)()
        (y,) = case.forward()
        (minicaffe.set_mode_gpu if backward_on_gpu else minicaffe.set_mode_cpu)()
        results.append([y, *case.backward(dy), *(blob.diff.copy() for blob in case.layer.blobs)])
    for ours in results[1:]:
        for a, b in zip(ours, results[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
