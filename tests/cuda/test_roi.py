"""The ROI layers' kernels against the CPU's functions: the same maxima and places bit for bit, sums within rounding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase
from numpy.typing import NDArray
from roi_cases import Case, cases, some_rois

import minicaffe
from minicaffe import TEST, TRAIN, Net
from minicaffe.blob import Blob
from minicaffe.cuda import device, roi
from minicaffe.errors import LayerError
from minicaffe.layers.roi.psroi_pooling import PsRoiPool

Array = NDArray[Any]

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_barrier]

LAYERS = {
    "ROIPooling": "type: 'ROIPooling' roi_pooling_param {{ pooled_h: {0[0]} pooled_w: {0[1]} spatial_scale: {1} }}",
    "ROIAlign max": "type: 'ROIAlign' roi_align_param {{ pooled_h: {0[0]} pooled_w: {0[1]} spatial_scale: {1} }}",
    "ROIAlign mean": "type: 'ROIAlign' roi_align_param {{ pooled_h: {0[0]} pooled_w: {0[1]} spatial_scale: {1} pool: AVE }}",
    "ROIAlign aligned": "type: 'ROIAlign' roi_align_param {{ pooled_h: {0[0]} pooled_w: {0[1]} spatial_scale: {1} "
    "sampling_ratio: 2 aligned: true }}",
    "ROIPooling widened": "type: 'ROIPooling' roi_pooling_param {{ pooled_h: {0[0]} pooled_w: {0[1]} spatial_scale: {1} "
    "pad_ratio: 0.3 }}",
    "ROIAlign grid": "type: 'ROIAlign' roi_pooling_param {{ pooled_h: {0[0]} pooled_w: {0[1]} spatial_scale: {1} "
    "pad_ratio: 0 }}",
    "ROIAlign widened": "type: 'ROIAlign' roi_pooling_param {{ pooled_h: {0[0]} pooled_w: {0[1]} spatial_scale: {1} "
    "pad_ratio: 0.25 }}",
    "PSROIPooling": "type: 'PSROIPooling' psroi_pooling_param {{ output_dim: {2} group_size: {0[0]} spatial_scale: {1} }}",
    "PSROIAlign": "type: 'PSROIAlign' psroi_align_param {{ output_dim: {2} group_size: {0[0]} spatial_scale: {1} }}",
}
WITH_WINNERS = ["ROIPooling", "ROIPooling widened", "ROIAlign max"]
IN_SHARED_MEMORY = [*WITH_WINNERS, "PSROIPooling", "PSROIAlign"]
all_layers = pytest.mark.parametrize("name", LAYERS)
both_types = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@pytest.fixture(autouse=True)
def cpu_mode_afterwards() -> Iterator[None]:
    yield
    minicaffe.set_mode_cpu()


def layer_case(name: str, case: Case, phase: Any = TRAIN) -> LayerCase:
    dim = case.x.shape[1] // case.pooled[0] ** 2
    return LayerCase(LAYERS[name].format(case.pooled, case.scale, dim), case.x, case.rois, phase=phase, dtype=case.x.dtype)


def run(name: str, case: Case, gpu: bool) -> tuple[Array, Array | None, Array]:
    """y, the winners' places (None for means) and dx of some dy, on the GPU or the CPU."""
    (minicaffe.set_mode_gpu if gpu else minicaffe.set_mode_cpu)()
    made = layer_case(name, case)
    (y,) = made.forward()
    argmax = made.layer.argmax.read_data().copy() if name in WITH_WINNERS else None
    dx = made.backward(np.random.default_rng(1).standard_normal(y.shape).astype(y.dtype))[0]
    minicaffe.set_mode_cpu()
    return y, argmax, dx


def check(name: str, case: Case) -> None:
    """GPU against CPU; and the GPU's dx is the same bits again."""
    (y, argmax, dx), (ours, places, ours_dx) = run(name, case, False), run(name, case, True)
    rounding = {"rtol": 1e-5, "atol": 1e-5} if case.x.dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-12}
    if name in WITH_WINNERS:
        np.testing.assert_array_equal(ours, y)
        np.testing.assert_array_equal(places, argmax)
    else:
        np.testing.assert_allclose(ours, y, **rounding)
    np.testing.assert_allclose(ours_dx, dx, **rounding)
    np.testing.assert_array_equal(run(name, case, True)[2], ours_dx)


def many_rois(count: int, images: int, width: int, height: int, scale: float) -> Array:
    """Rois of every size and some malformed; half of them with coordinates that tie when rounded."""
    random = np.random.default_rng(2)
    corners = random.uniform(-0.2, 1.2, (count, 4)) * [width, height, width, height] / scale
    corners[::2] = np.round(2 * corners[::2] * scale) / (2 * scale)
    corners[:, 2:] = np.where(random.random((count, 1)) < 0.9, np.maximum(corners[:, :2], corners[:, 2:]), corners[:, 2:])
    return np.concatenate([random.integers(0, images, (count, 1)), corners], axis=1)


@pytest.mark.parametrize("name", [name for name in LAYERS if not name.startswith("PS")])
@given(st.data())
def test_any_geometry(name: str, data: st.DataObject) -> None:
    check(name, data.draw(cases(dtype=data.draw(st.sampled_from([np.float32, np.float64])))))


@pytest.mark.parametrize("name", ["PSROIPooling", "PSROIAlign"])
@given(st.data())
def test_any_position_sensitive_geometry(name: str, data: st.DataObject) -> None:
    check(name, data.draw(cases(groups=True, dtype=data.draw(st.sampled_from([np.float32, np.float64])))))


@all_layers
@both_types
def test_many_rois(name: str, dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rois for each group of threads, and a slab and a bit of channels."""
    monkeypatch.setattr(roi, "MOST_WARPS", 2)
    group = 3 if name.startswith("PS") else 0
    x = np.random.default_rng(3).standard_normal((2, 18, 19, 23)).astype(dtype)
    check(name, Case(x, many_rois(150, 2, 23, 19, 0.0625).astype(dtype), 0.0625, (group, group) if group else (7, 5)))


@pytest.mark.parametrize("name", ["PSROIPooling", "PSROIAlign", "ROIAlign mean"])
def test_more_rois_and_channels_than_a_block_takes_at_a_time(name: str) -> None:
    x = np.random.default_rng(3).standard_normal((2, 70, 5, 7))
    check(name, Case(x, many_rois(700, 2, 7, 5, 0.5), 0.5, (1, 1)))


@pytest.mark.parametrize("name", ["PSROIPooling", "PSROIAlign"])
def test_a_few_columns_of_the_map_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roi, "ROOM", 160)
    x = np.random.default_rng(3).standard_normal((2, 18, 11, 23)).astype(np.float32)
    check(name, Case(x, many_rois(20, 2, 23, 11, 0.5).astype(np.float32), 0.5, (3, 3)))


@pytest.mark.parametrize("name", ["ROIPooling", "ROIAlign max", "ROIAlign mean"])
@pytest.mark.parametrize("pooled", [(9, 8), (17, 19)])
def test_more_bins_than_threads(name: str, pooled: tuple[int, int]) -> None:
    x = np.random.default_rng(3).standard_normal((1, 3, 11, 13)).astype(np.float32)
    check(name, Case(x, many_rois(7, 1, 13, 11, 0.5).astype(np.float32), 0.5, pooled))


@pytest.mark.parametrize("name", IN_SHARED_MEMORY)
def test_a_map_larger_than_shared_memory(name: str) -> None:
    check(name, large_map())


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in IN_SHARED_MEMORY])
def test_a_map_of_many_tiles(name: str) -> None:
    check(name, large_map())


def large_map() -> Case:
    x = np.random.default_rng(3).standard_normal((1, 4, 110, 120)).astype(np.float32)
    return Case(x, many_rois(9, 1, 120, 110, 0.25).astype(np.float32), 0.25, (2, 2))


@all_layers
def test_a_map_too_wide_for_shared_memory(name: str) -> None:
    x = np.random.default_rng(3).standard_normal((1, 4, 2, 11300)).astype(np.float32)
    check(name, Case(x, many_rois(3, 1, 11300, 2, 1.0).astype(np.float32), 1.0, (2, 2)))


@all_layers
def test_more_rois_than_a_grid_has_rows(name: str) -> None:
    x = np.random.default_rng(3).standard_normal((1, 1, 2, 3)).astype(np.float32)
    case = Case(x, many_rois(66000, 1, 3, 2, 1.0).astype(np.float32), 1.0, (1, 1))
    y, _, dx = run(name, case, True)
    np.testing.assert_allclose(y[-100:], run(name, case._replace(rois=case.rois[-100:]), False)[0], rtol=1e-5, atol=1e-6)
    assert np.isfinite(dx).all() and dx.any()


def test_a_table_for_some_rois_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roi, "TABLE", 200)
    x = np.random.default_rng(3).standard_normal((2, 3, 9, 11)).astype(np.float32)
    check("ROIAlign mean", Case(x, many_rois(13, 2, 11, 9, 0.5).astype(np.float32), 0.5, (3, 2)))


@all_layers
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_the_same_bins(name: str, value: float) -> None:
    group = 2 if name.startswith("PS") else 0
    x = np.random.default_rng(3).standard_normal((2, 8, 9, 11)).astype(np.float32)
    x[:, ::3, 4, 5], x[1, 5] = value, value
    case = Case(x, some_rois().astype(np.float32), 0.5, (group, group) if group else (3, 2))
    with np.errstate(invalid="ignore"):
        y, ours = run(name, case, False)[0], run(name, case, True)[0]
    finite = np.isfinite(y)
    np.testing.assert_array_equal(np.isfinite(ours), finite)
    np.testing.assert_allclose(ours[finite], y[finite], rtol=1e-5, atol=1e-5)


@both_types
@pytest.mark.parametrize("scale", [1 / 16, 1 / 3, 0.3, 1.0])
def test_position_sensitive_bins_bit_for_bit(dtype: type, scale: float) -> None:
    rois = Blob((500, 5), dtype)
    rois.data[...] = many_rois(500, 1, 63, 38, scale)
    spans, images = Blob((2, 7, 500, 2), np.int32), Blob((500,), np.int32)
    minicaffe.set_mode_gpu()
    arguments = rois.device_data("read"), spans.device_data("write"), 0, images.device_data("write"), 0
    device.launch("psroi_pooling.bins", dtype, 500, 500, 1, 49, 38, 63, 7, 7, scale, 0, *arguments)
    expected = PsRoiPool(group_size=7, spatial_scale=scale).plan(rois.read_data(), (38, 63)).places
    np.testing.assert_array_equal(spans.data[0, :, :, 0].T, expected.hstart)
    np.testing.assert_array_equal(spans.data[0, :, :, 1].T, expected.hend)
    np.testing.assert_array_equal(spans.data[1, :, :, 0].T, expected.wstart)
    np.testing.assert_array_equal(spans.data[1, :, :, 1].T, expected.wend)


@pytest.mark.parametrize("name", WITH_WINNERS)
def test_no_rois_after_some_and_back_on_the_cpu(name: str) -> None:
    made = layer_case(name, Case(np.ones((1, 2, 3, 4)), some_rois(1), 0.5, (2, 3)))
    minicaffe.set_mode_gpu()
    made.forward()
    made.bottom[1].reshape(0, 5)
    made.forward()
    minicaffe.set_mode_cpu()
    assert not made.backward()[0].any()


@all_layers
@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_from_one_device_to_the_other_between_forward_and_backward(name: str, phase: Any) -> None:
    group = 2 if name.startswith("PS") else 0
    x = np.random.default_rng(3).standard_normal((2, 8, 9, 11))
    case = Case(x, some_rois(), 0.5, (group, group) if group else (3, 2))
    dy = np.random.default_rng(1).standard_normal(layer_case(name, case).top[0].shape)
    gradients = []
    for modes in ("cc", "cg", "gc", "gg"):
        made = layer_case(name, case, phase)
        for mode, step in zip(modes, (made.forward, lambda made=made: gradients.append(made.backward(dy)[0]))):
            (minicaffe.set_mode_gpu if mode == "g" else minicaffe.set_mode_cpu)()
            step()
    for dx in gradients[1:]:
        np.testing.assert_allclose(dx, gradients[0], rtol=1e-12, atol=1e-12)


NET = """name: "head" input: "x" input_dim: 1 input_dim: 3 input_dim: 9 input_dim: 11
input: "rois" input_dim: 4 input_dim: 5 input_dim: 1 input_dim: 1
layer {{ name: "pool5" bottom: "x" bottom: "rois" top: "pool5" {} }}
layer {{ name: "relu" type: "ReLU" bottom: "pool5" top: "y" }}"""


def net_of(name: str, tmp_path: Any) -> Net:
    path = tmp_path / "net.prototxt"
    path.write_text(NET.format(LAYERS[name].format((1, 1), 0.5, 3)))
    return Net(path, TEST)


@all_layers
def test_a_bad_roi_is_an_error_at_the_end_of_forward_and_the_net_goes_on(name: str, tmp_path: Any) -> None:
    net = net_of(name, tmp_path)
    x = np.random.default_rng(3).standard_normal((1, 3, 9, 11)).astype(np.float32)
    good = some_rois(1)[:4].astype(np.float32)[:, :, None, None]
    expected = net.forward(x=x, rois=good)["y"].copy()
    bad = good.copy()
    bad[2, 0] = 1
    bad[3, 1] = np.nan
    minicaffe.set_mode_gpu()
    messages = []
    for mode in (minicaffe.set_mode_gpu, minicaffe.set_mode_cpu):
        mode()
        with pytest.raises(LayerError, match=r'"pool5": roi 3 is .*: a coordinate is NaN or infinite') as error:
            net.forward(x=x, rois=bad)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    minicaffe.set_mode_gpu()
    np.testing.assert_allclose(net.forward(x=x, rois=good)["y"], expected, rtol=1e-5, atol=1e-6)


@all_layers
def test_only_inputs_and_outputs_move(name: str, tmp_path: Any) -> None:
    net = net_of(name, tmp_path)
    x = np.random.default_rng(3).standard_normal((1, 3, 9, 11)).astype(np.float32)
    rois = some_rois(1)[:4].astype(np.float32)[:, :, None, None]
    minicaffe.set_mode_gpu()
    net.forward(x=x, rois=rois)
    moved = device.current().transfers
    before = moved.to_device, moved.to_host
    y = net.forward(x=x, rois=rois)["y"]
    checks = 4
    assert (moved.to_device - before[0], moved.to_host - before[1]) == (x.nbytes + rois.nbytes, y.nbytes + checks)
