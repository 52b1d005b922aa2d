"""The cases of docs/fidelity.md: the originals' backward passes, and ours, on one roi each; and on the golden data."""

from __future__ import annotations

import golden
import numpy as np
import pytest
import roi_original_backward as original
from numpy.typing import NDArray
from roi_cases import Case

from minicaffe import Net, ops
from minicaffe.layers.roi.roi_align_max import RoiAlignMax


def winners(x: NDArray, rois: NDArray, pooled: tuple[int, int], scale: float) -> tuple[NDArray, tuple[NDArray, NDArray]]:
    """Our argmax of Caffe's ROIAlign, and the h and w that the original keeps: cut to ints, -1 for none."""
    argmax = ops.roi_align_max_argmax(x, rois, *pooled, scale)
    samples = Case(x, rois, scale, pooled).plan(RoiAlignMax).places
    h, w = np.full(argmax.shape, -1), np.full(argmax.shape, -1)
    for r, c, ph, pw in np.argwhere(argmax >= 0):
        i, j = divmod(int(argmax[r, c, ph, pw]), x.shape[3] + 1)
        h[r, c, ph, pw], w[r, c, ph, pw] = int(samples.h[r, ph, i]), int(samples.w[r, pw, j])
    return argmax, (h, w)


def test_roi_pooling_forgets_a_malformed_roi() -> None:
    x = np.arange(20, dtype=np.float32).reshape(1, 1, 4, 5)
    rois = np.array([[0, 3, 1, 1, 3]], np.float32)
    argmax = ops.roi_pool_argmax(x, rois, 1, 1, 1.0)
    dy = np.ones((1, 1, 1, 1), np.float32)
    assert ops.roi_pool(x, rois, 1, 1, 1.0).item() == 18
    assert ops.roi_pool_backward(dy, rois, argmax, x.shape)[0, 0, 3, 3] == 1
    assert not original.roi_pool_backward(dy, argmax, rois, 1.0, x.shape).any()


def test_roi_pooling_forgets_a_maximum_past_the_rounded_end() -> None:
    """57 pixels in 7 bins: in float32 7 * (57 / 7) is 57.000004, so the last bin reads one column more."""
    x = np.zeros((1, 1, 1, 59), np.float32)
    x[0, 0, 0, 57] = 5
    rois = np.array([[0, 0, 0, 56, 0]], np.float32)
    argmax = ops.roi_pool_argmax(x, rois, 1, 7, 1.0)
    dy = np.ones((1, 1, 1, 7), np.float32)
    assert ops.roi_pool(x, rois, 1, 7, 1.0)[0, 0, 0, 6] == 5
    assert ops.roi_pool_backward(dy, rois, argmax, x.shape)[0, 0, 0, 57] == 1
    assert original.roi_pool_backward(dy, argmax, rois, 1.0, x.shape)[0, 0, 0, 57] == 0


def test_roi_align_drops_the_bilinear_weights_and_reads_past_its_bins() -> None:
    plane = np.array([[0, 4, 8], [4, 8, 12]], np.float32)
    rois = np.array([[0, 0.5, 0.25, 1.5, 0.25]], np.float32)
    x = np.stack([plane, plane])[None]
    argmax, places = winners(x, rois, (1, 1), 1.0)
    dy = np.array([8, 800], np.float32).reshape(1, 2, 1, 1)
    ours = ops.roi_align_max_backward(dy, rois, argmax, 1.0, x.shape)
    theirs = original.roi_align_backward(dy, places, rois, 1.0, x.shape)
    assert ops.roi_align_max(x, rois, 1, 1, 1.0).ravel().tolist() == [7, 7]
    np.testing.assert_array_equal(ours[0], [[[0, 3, 3], [0, 1, 1]], [[0, 300, 300], [0, 100, 100]]])
    np.testing.assert_array_equal(theirs[0], [[[0, 1608, 0], [0, 0, 0]], [[0, 800, 0], [0, 0, 0]]])


def test_psroi_align_cuts_neighbours_off_and_feeds_the_corner() -> None:
    x_shape = (1, 1, 4, 5)
    rois = np.array([[0, 0, 0, 6, 1]], np.float32)
    dy = np.full((1, 1, 1, 1), 36, np.float32)
    ours = ops.ps_roi_align_backward(dy, rois, 1.0, x_shape)
    theirs = original.ps_roi_align_backward(dy, rois, 1.0, x_shape, 2)
    shared = [[0, 0, 2, 1, 0], [0, 0, 8, 4, 0]]
    np.testing.assert_allclose(ours[0, 0], [*shared, [0, 0, 2, 1, 0], [0] * 5], atol=1e-4)
    np.testing.assert_allclose(theirs[0, 0], [[18, 0, 2, 1, 0], shared[1], [0] * 5, [0] * 5], atol=1e-4)


@pytest.mark.parametrize("case", [c for kind in ("ROIPooling", "ROIAlign", "PSROIAlign") for c in golden.cases(kind)])
def test_the_originals_rules_explain_every_recorded_diff(case: str) -> None:
    """Where our diff is not the recorded one, the original's rule, on our argmax, gives the recorded one."""
    path = golden.GOLDEN / f"{case}.prototxt"
    stored = np.load(path.with_suffix(".npz"))
    layer = Net(path, 0).layer_dict["layer"]
    x, dy, scale = stored["bottom.b0"], stored["top_diff.t0"], layer.spatial_scale
    rois = stored["bottom.b1"].reshape(-1, 5)
    if "bottom.b2" in stored:
        scale = abs(float(stored["bottom.b2"].flat[0]))
    if case.startswith("ROIPooling"):
        argmax = ops.roi_pool_argmax(x, rois, layer.operator.pooled_h, layer.operator.pooled_w, scale)
        diff = original.roi_pool_backward(dy, argmax, rois, scale, x.shape)
    elif case.startswith("ROIAlign"):
        _, places = winners(x, rois, (layer.operator.pooled_h, layer.operator.pooled_w), scale)
        diff = original.roi_align_backward(dy, places, rois, scale, x.shape)
    else:
        diff = original.ps_roi_align_backward(dy, rois, scale, x.shape, layer.operator.sample_num)
    golden.compare(diff, stored["bottom_diff.b0"], (1e-4, 1e-5), case)
