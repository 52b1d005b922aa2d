"""Cascade R-CNN's ROIAlign, and pad_ratio of both its layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase
from numpy.typing import NDArray
from roi_cases import Case, cases, some_rois

from minicaffe import Net, explain
from minicaffe.errors import LayerError
from minicaffe.formats.forks import NetFork
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.roi.roi_align import ROIAlign, ROIAlignGrid, RoiAlignGrid, ROIAlignMax, ROIAlignMean
from minicaffe.layers.roi.roi_pooling import RoiPool
from minicaffe.layers.roi.roi_samples import means_backward_by_definition, means_by_definition
from minicaffe.mode import TEST, TRAIN
from minicaffe.proto import caffe_pb2

Array = NDArray[Any]

RATIOS = st.sampled_from([0.0, 0.25, 0.5, 1.3, -0.2])


def align(ratio: float = 0.25, pooled_h: int = 2, pooled_w: int = 3, scale: float = 0.5) -> str:
    return (
        f"type: 'ROIAlign' roi_pooling_param {{ pooled_h: {pooled_h} pooled_w: {pooled_w} spatial_scale: {scale} "
        f"pad_ratio: {ratio} }}"
    )


def inputs(x: list[int], rois: list[int]) -> str:
    shapes = f"shape {{ dim: {x} }} shape {{ dim: {rois} }}"
    return f"layer {{ name: 'in' type: 'Input' top: 'x' top: 'rois' input_param {{ {shapes} }} }}"


def value_at(plane: Array, h: float, w: float) -> float:
    """The bilinear value, of a place that is at most half a pixel off the plane."""
    height, width = plane.shape
    if h < -0.5 or h > height - 0.5 or w < -0.5 or w > width - 0.5:
        return 0.0
    low_h, low_w = int(np.floor(h)), int(np.floor(w))
    h, w = min(max(h, 0), height - 1), min(max(w, 0), width - 1)
    (top, bottom), (left, right) = (
        [min(max(low + i, 0), size - 1) for i in (0, 1)] for low, size in ((low_h, height), (low_w, width))
    )
    down, across = h - top, w - left
    return float(
        plane[top, left] * (1 - down) * (1 - across)
        + plane[top, right] * (1 - down) * across
        + plane[bottom, left] * down * (1 - across)
        + plane[bottom, right] * down * across
    )


def by_loops(case: Case, ratio: float) -> Array:
    """The layer's function from its formula alone."""
    kind, pooled_h, pooled_w = case.x.dtype.type, *case.pooled
    y = np.zeros((len(case.rois), case.x.shape[1], pooled_h + 1, pooled_w + 1))
    for r, (image, x1, y1, x2, y2) in enumerate(case.rois):
        pad_w, pad_h = (x2 - x1 + kind(1)) * kind(ratio), (y2 - y1 + kind(1)) * kind(ratio)
        scale, half = kind(case.scale), kind(0.5)
        left, top = (x1 - pad_w) * scale - half, (y1 - pad_h) * scale - half
        width, height = (x2 + pad_w) * scale - half - left, (y2 + pad_h) * scale - half - top
        if width <= 0 or height <= 0:
            continue
        for c, ph, pw in np.ndindex(y.shape[1:]):
            h, w = top + kind(ph) * (height / kind(pooled_h)), left + kind(pw) * (width / kind(pooled_w))
            y[r, c, ph, pw] = value_at(case.x[int(image), c], h, w)
    return y


@pytest.mark.usefixtures("definitions_way")
@given(st.one_of(cases(), cases(dtype=np.float64)), RATIOS)
def test_the_grid_agrees_with_loops(case: Case, ratio: float) -> None:
    operator = case.operator(RoiAlignGrid, pad_ratio=ratio)
    expected = by_loops(case, ratio)
    np.testing.assert_allclose(operator.forward(case.x, case.rois)[0], expected, rtol=1e-4, atol=1e-5)
    plan = case.plan(RoiAlignGrid, pad_ratio=ratio)
    np.testing.assert_allclose(means_by_definition(operator, case.x, plan), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("definitions_way")
@given(cases(dtype=np.float64), RATIOS)
def test_backward_agrees_with_the_definition_and_is_the_transpose(case: Case, ratio: float) -> None:
    operator = case.operator(RoiAlignGrid, pad_ratio=ratio)
    y, saved = operator.forward(case.x, case.rois)
    dy, expected = np.random.default_rng(1).standard_normal(y.shape), np.zeros(case.x.shape)
    dx = operator.backward(dy, saved)
    means_backward_by_definition(operator, dy, saved.plan, expected)
    np.testing.assert_allclose(dx, expected, rtol=1e-10, atol=1e-12)
    assert (y * dy).sum() == pytest.approx((case.x * dx).sum(), abs=1e-9)


@pytest.mark.parametrize("kind", [RoiPool, RoiAlignGrid])
@given(case=cases(), ratio=RATIOS)
def test_rois_widened_by_hand_give_the_same(kind: Any, case: Case, ratio: float) -> None:
    rois, ratio32 = case.rois.copy(), np.float32(ratio)
    for a, b in ((1, 3), (2, 4)):
        pad = (case.rois[:, b] - case.rois[:, a] + 1) * ratio32
        rois[:, a], rois[:, b] = case.rois[:, a] - pad, case.rois[:, b] + pad
    y = case.operator(kind, pad_ratio=ratio).forward(case.x, case.rois)[0]
    np.testing.assert_array_equal(y, case.operator(kind).forward(case.x, rois)[0])


@given(cases())
def test_without_pad_ratio_roi_pooling_is_what_it_was(case: Case) -> None:
    plan, given_zero = case.plan(RoiPool), case.plan(RoiPool, pad_ratio=0.0)
    assert plan.rois is case.rois and given_zero.rois is case.rois
    for mine, other in zip(plan.places, given_zero.places):
        np.testing.assert_array_equal(mine, other)


def test_roi_pooling_widened_by_hand() -> None:
    """A roi of one pixel, widened by one on each side: the maximum of 3 x 3 cells."""
    x = np.arange(25.0).reshape(1, 1, 5, 5)
    text = "type: 'ROIPooling' roi_pooling_param { pooled_h: 1 pooled_w: 1 spatial_scale: 1 pad_ratio: %g }"
    assert LayerCase(text % 0, x, [[0, 2, 2, 2, 2]]).forward()[0].item() == 12
    widened = LayerCase(text % 1, x, [[0, 2, 2, 2, 2]])
    assert widened.forward()[0].item() == 18
    dx = widened.backward(np.ones((1, 1, 1, 1)))[0]
    assert dx.sum() == dx[0, 0, 3, 3] == 1


def test_a_linear_map_gives_its_own_values_at_the_corners() -> None:
    h, w = np.mgrid[:9, :11]
    x = (2.0 * h - 3.0 * w + 1)[None, None]
    (y,) = LayerCase(align(0, 3, 2, 0.5), x, [[0, 3, 5, 15, 14]]).forward()
    rows, columns = 2.0 + np.arange(4) * 1.5, 1.0 + np.arange(3) * 3.0
    np.testing.assert_allclose(y[0, 0], 2 * rows[:, None] - 3 * columns + 1, rtol=1e-12)


def test_average_pooling_after_it_gives_the_mean_of_a_bins_corners() -> None:
    net = Net(
        parse_net(
            inputs([1, 2, 6, 7], [2, 5]) + f"layer {{ name: 'grid' bottom: 'x' bottom: 'rois' top: 'grid' {align(0.1)} }}"
            "layer { name: 'pool' type: 'Pooling' bottom: 'grid' top: 'y'"
            " pooling_param { pool: AVE kernel_size: 2 stride: 1 } }"
        ),
        TEST,
    )
    x = np.random.default_rng(0).standard_normal((1, 2, 6, 7))
    y = net.forward(x=x, rois=[[0, 2, 1, 9, 8], [0, 0, 3, 5, 9]])["y"]
    grid = net.blobs["grid"].data
    assert y.shape == (2, 2, 2, 3) and grid.shape == (2, 2, 3, 4)
    mean = (grid[..., 1:, 1:] + grid[..., :-1, 1:] + grid[..., 1:, :-1] + grid[..., :-1, :-1]) / 4
    np.testing.assert_allclose(y, mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("text", [align(), align(0), align().replace("ROIAlign", "ROIPooling")])
def test_gradient(text: str) -> None:
    x = np.random.default_rng(2).permutation(2 * 1 * 6 * 7).reshape(2, 1, 6, 7) / 10.0
    case = LayerCase(text, x, some_rois(), phase=TRAIN)
    assert case.check_gradient().elements == x.size


def test_a_place_off_the_map_and_a_roi_without_height_give_0() -> None:
    x = np.ones((1, 1, 4, 4))
    rois = [[0, 0, 0, 8, 8], [0, 2, 2, 6, 2], [0, 6, 6, 2, 2], [0, -4, 0, 4, 8]]
    (y,) = LayerCase(align(0, 2, 2, 0.5), x, rois).forward()
    assert (y[0] == 1).all()  # corners at -0.5 and 3.5: the outer pixels' value
    assert not y[1:3].any()
    np.testing.assert_array_equal(y[3, 0], [[0, 1, 1]] * 3)


def test_nan_spoils_only_the_corners_that_read_it() -> None:
    x = np.ones((1, 1, 6, 6))
    x[0, 0, 5, 5] = np.nan
    (y,) = LayerCase(align(0, 2, 2, 1), x, [[0, 0.5, 0.5, 5, 5]]).forward()
    assert np.isnan(y[0, 0, 2, 2]) and np.isfinite(y).sum() == 8


# Bad input.


@pytest.mark.parametrize("kind", ["ROIAlign", "ROIPooling"])
def test_bad_pad_ratio(kind: str) -> None:
    with pytest.raises(LayerError, match="pad_ratio must be finite, got inf"):
        LayerCase(align().replace("ROIAlign", kind).replace("0.25", "inf"), np.zeros((1, 1, 4, 4)), [[0, 0, 0, 1, 1]])


def test_a_roi_that_is_too_large_only_when_widened() -> None:
    case = LayerCase(align(2, scale=1), np.zeros((1, 1, 4, 4)), [[0, 0, 0, 2.0**28, 5]])
    with pytest.raises(LayerError, match=r"widened by pad_ratio, roi 0 is \[0.0, -536870914.0.*beyond 536870912 pixels"):
        case.forward()
    with pytest.raises(LayerError, match=r": roi 0 is \[0.0, nan, .*: a coordinate is NaN"):
        LayerCase(align(), np.zeros((1, 1, 4, 4)), [[0, np.nan, 0, 2, 5]]).forward()


def test_a_third_bottom_and_both_blocks_are_refused() -> None:
    with pytest.raises(LayerError, match=r"a third bottom \(the spatial scale\) belongs to Caffe's; this is Cascade R-CNN's"):
        LayerCase(align(), np.zeros((1, 1, 4, 4)), [[0, 0, 0, 1, 1]], [1.0])
    with pytest.raises(LayerError, match="are both given"):
        LayerCase(align() + " roi_align_param { pooled_h: 1 }", np.zeros((1, 1, 4, 4)), [[0, 0, 0, 1, 1]])


# Which ROIAlign.

INPUTS = inputs([1, 1, 4, 4], [1, 5])
PLAIN = "roi_pooling_param { pooled_h: 2 pooled_w: 2 }"
BOX_OUTPUT = "layer { name: 'o' type: 'BoxOutput' bottom: 'b' top: 'o' include { phase: TRAIN } }"


def chosen(block: str, more: str = "", fork: str = "") -> tuple[type, str]:
    text = f"layer {{ name: 'r' type: 'ROIAlign' bottom: 'x' bottom: 'rois' top: 'y' {block} }}"
    net = Net(parse_net(INPUTS + text + more), TEST, fork=fork)
    return type(net.layer_dict["r"]), str(net.forks.get("r", ""))


def test_which() -> None:
    cascade = "ROIAlign of Cascade R-CNN: "
    assert chosen(PLAIN) == (ROIAlignMax, "ROIAlign of Caffe: no other sign")
    assert chosen("roi_align_param { pooled_h: 2 pooled_w: 2 }") == (ROIAlignMax, "")
    assert chosen("roi_pooling_param { pooled_h: 2 pooled_w: 2 pad_ratio: 0 }") == (
        ROIAlignGrid,
        cascade + "roi_pooling_param has pad_ratio",
    )
    for fork in ("cascade", "mscnn"):
        assert chosen(PLAIN, fork=fork) == (ROIAlignGrid, f"{cascade}fork {fork}")
    assert chosen(PLAIN, BOX_OUTPUT) == (ROIAlignGrid, cascade + "the net has BoxOutput layers")
    assert chosen(PLAIN, BOX_OUTPUT, fork="ssd")[0] is ROIAlignMax
    # what the layer says goes before the net
    for words, kind in (("", ROIAlignMax), ("pool: AVE", ROIAlignMean), ("sampling_ratio: 0", ROIAlignMean)):
        for sign in ({"fork": "cascade"}, {"more": BOX_OUTPUT}):
            assert chosen(f"roi_align_param {{ pooled_h: 2 pooled_w: 2 {words} }}", **sign) == (kind, "")
    with pytest.raises(LayerError, match="makefile/frcnn's ROIAlign is not built in"):
        chosen(PLAIN, fork="mkfrcnn")
    with pytest.raises(LayerError, match="the ROIAlign of Synopsys' Caffe is not built in"):
        chosen("roi_align_param { pooled_h: 2 pooled_w: 2 }", fork="synopsys")


def test_a_derived_class_serves_itself() -> None:
    class Mine(ROIAlign):
        pass

    assert Mine.resolve_class(caffe_pb2.LayerParameter(), NetFork("cascade", "")) is Mine


@pytest.mark.parametrize("kind", ["ROIPooling", "ROIAlign"])
def test_explain_says_how_the_roi_was_widened(kind: str) -> None:
    text = f"layer {{ name: 'r' bottom: 'x' bottom: 'rois' top: 'y' {align(0.25, 2, 2, 0.5).replace('ROIAlign', kind)} }}"
    net = Net(parse_net(INPUTS + text), TEST)
    net.forward(x=np.arange(16.0).reshape(1, 1, 4, 4), rois=[[0, 1, 2, 4, 5]])
    said = str(explain(net, "r", (0, 0, 1, 1)))
    assert "roi 0: image 0, x1 1, y1 2, x2 4, y2 5" in said
    assert "(4 - 1 + 1) * 0.25 = 1" in said and "0 to 5" in said and "1 to 6" in said
