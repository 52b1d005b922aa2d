"""minicaffe.ops: what each function says of arguments that do not fit, the docs' table, and SSD's functions by hand."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe import ops
from minicaffe.errors import Error

X = np.arange(2 * 8 * 5 * 6, dtype=np.float32).reshape(2, 8, 5, 6)
ROIS = np.array([[0, 0, 0, 3, 2], [1, 1, 0, 4, 4], [1, 0, 0, 5, 4]], np.float32)
DY = np.ones((3, 8, 2, 2), np.float32)
DY_GROUPED = np.ones((3, 2, 2, 2), np.float32)
ARGMAX = ops.roi_pool_argmax(X, ROIS, 2, 2, 1.0)
BOXES = np.array([[0.1, 0.2, 0.5, 0.9], [0.0, 0.0, 0.3, 0.3]])


def test_the_docs_have_every_signature() -> None:
    text = (Path(__file__).parents[2] / "docs/python.md").read_text(encoding="utf-8")
    for name in ops.__all__:
        bare = inspect.Signature(
            [one.replace(annotation=one.empty) for one in inspect.signature(getattr(ops, name)).parameters.values()]
        )
        assert f"`{name}{bare}`".replace("'", '"') in text, name


BAD: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("nms", (BOXES, 0.5), {}, "nms: dets must have shape (N, 5), got (2, 4)"),
    ("nms", ([1.0, 2, 3], 0.5), {}, "nms: dets must have shape (N, 5), got (3,)"),
    ("nms", ([["a"] * 5], 0.5), {}, 'nms: "dets": an array of <U1, not of numbers'),
    ("nms", (np.zeros((1, 5)), "0.5"), {}, "nms: threshold must be a number, got '0.5'"),
    ("nms", (np.zeros((1, 5)), None), {}, "nms: threshold must be a number, got None"),
    ("nms", (np.zeros((1, 5)), np.nan), {}, "nms: threshold must be finite, got nan"),
    ("nms", (np.zeros((1, 5)), 0.5, 1.5), {}, "nms: limit must be a whole number, got 1.5"),
    ("bbox_overlaps", (BOXES[:, :3], BOXES), {}, "bbox_overlaps: boxes must have shape (N, 4+), got (2, 3)"),
    ("bbox_transform", (BOXES, BOXES[:1]), {}, "targets must have shape (N, 4) with N = 2, got (1, 4)"),
    ("bbox_transform", (BOXES, [[0, 0, 5, 5], [3, 0, 2, 5]]), {}, "targets 1 has no width or height: [3.0, 0.0, 2.0, 5.0]"),
    ("bbox_transform_inv", (BOXES, np.zeros((2, 6))), {}, "deltas must have shape (N, 4K) with N = 2, got (2, 6)"),
    ("clip_boxes", (BOXES, (0, 4)), {}, "image_shape must hold numbers > 0, got [0.0, 4.0]"),
    ("generate_anchors", (0,), {}, "base_size must be >= 1, got 0"),
    ("generate_anchors", (), {"ratios": [1, -2]}, "ratios must hold numbers > 0, got [1.0, -2.0]"),
    ("generate_anchors", (), {"scales": [np.inf]}, "scales must hold numbers > 0, got [inf]"),
    ("shifted_anchors", (BOXES, 2, 3, 0), {}, "stride must be >= 1, got 0"),
    ("shifted_anchors", (BOXES, -2, 3, 1), {}, "height must be >= 0, got -2"),
    ("proposals", (BOXES, [1, 2, 3], BOXES, [5, 5, 1], None), {}, "scores must have shape (N,) with N = 2, got (3,)"),
    ("proposals", (BOXES, [1, 2], BOXES, [5, 5, 0], None), {}, "im_info must hold numbers > 0, got [5.0, 5.0, 0.0]"),
    ("roi_pool", (X, ROIS, 0, 2, 1), {}, "roi_pool: pooled_h must be >= 1, got 0"),
    ("roi_pool", (X, ROIS, 2, 2.5, 1), {}, "pooled_w must be a whole number, got 2.5"),
    ("roi_align", (X, ROIS, 2, 2, np.inf), {}, "spatial_scale must be finite, got inf"),
    ("ps_roi_pool", (X, ROIS, 0, 1), {}, "group_size must be >= 1, got 0"),
    ("ps_roi_align", (X, ROIS, 2, 1, 0), {}, "sample_num must be >= 1, got 0"),
    ("roi_pool_backward", (DY, ARGMAX, ROIS, X.shape), {}, "rois must have shape (R, 5) with R = 3, got (3, 8, 2, 2)"),
    ("roi_pool_backward", (DY[0], ROIS, ARGMAX, X.shape), {}, "dy must have shape (R, C, PH, PW), got (8, 2, 2)"),
    ("roi_pool_backward", (DY, ROIS, ARGMAX[:, :, :1], X.shape), {}, "argmax must have shape (R, C, PH, PW) with R = 3, C = 8"),
    ("roi_pool_backward", (DY, ROIS, ARGMAX * 1.0, X.shape), {}, "argmax must hold whole numbers, got an array of float64"),
    ("roi_pool_backward", (DY, ROIS, ARGMAX, (2, 8, 5)), {}, "x_shape must be the four lengths (N, C, H, W), got (2, 8, 5)"),
    ("roi_pool_backward", (DY, ROIS, ARGMAX, (2, 7, 5, 6)), {}, "x_shape must have C = 8, as the other arguments have"),
    ("roi_pool_backward", (DY, ROIS, ARGMAX, (2, 8, 3, 3)), {}, "argmax must hold -1 to 8, got"),
    ("roi_pool_backward", (DY, ROIS, ARGMAX, (1, 8, 5, 6)), {}, "the batch index is out of range: the batch has 1 images"),
    ("roi_align_backward", (DY, ROIS * np.nan, 1, X.shape), {}, "roi 0 is [nan, nan, nan, nan, nan]: a coordinate is NaN"),
    ("roi_align_backward", (DY, ROIS, X.shape, 1), {}, "x_shape must be the four lengths (N, C, H, W), got 1"),
    ("roi_align_max_backward", (DY, ROIS, ARGMAX + 99, 1, X.shape), {}, "argmax must hold -1 to 41, got"),
    ("ps_roi_pool_backward", (DY_GROUPED[..., :1], ROIS, 1, X.shape), {}, "dy must have shape (R, D, G, G), got (3, 2, 2, 1)"),
    ("ps_roi_pool_backward", (DY, ROIS, 1, X.shape), {}, "x_shape must have D * G * G = 8 * 2^2 = 32 channels, got 8"),
    ("ps_roi_align_backward", (DY_GROUPED, ROIS, 1, X.shape, 0), {}, "sample_num must be >= 1, got 0"),
    ("aspect_ratios", ([0], True), {}, "given must hold numbers > 0, got [0.0]"),
    ("prior_sides", ([0.5], [], [1]), {}, "min_sizes must be >= 1, got [0.5]"),
    ("prior_sides", ([5, 6], [7], [1]), {}, "1 max_sizes for 2 min_sizes: give one for each, or none"),
    ("prior_sides", ([5, 6], [7, 6], [1]), {}, "each of max_sizes must be greater than its min_sizes"),
    ("prior_sides", ([5], [], [-1]), {}, "ratios must hold numbers > 0, got [-1.0]"),
    ("prior_boxes", ([[3, 4]], (2, 3), (0, 9), (1, 1)), {}, "image must hold numbers > 0, got [0.0, 9.0]"),
    ("prior_boxes", ([[3, 4]], (2.5, 3), (9, 9), (1, 1)), {}, "size must hold whole numbers, got an array of float64"),
    ("jaccard", (BOXES, BOXES[0]), {}, "others must have shape (K, 4), got (4,)"),
    ("ssd_decode", (BOXES, BOXES[:1]), {}, "priors must have shape (P, 4) with P = 2, got (1, 4)"),
    ("ssd_decode", (BOXES, BOXES, (1, 2)), {}, "variances must be 4 numbers > 0, or (2, 4) of them, got [1, 2]"),
    ("ssd_decode", (BOXES, BOXES, (1, 1, 1, 0)), {}, "variances must be 4 numbers > 0"),
    ("ssd_decode", (BOXES, BOXES, (1, 1, 1, 1), "CENTRE"), {}, "code is one of CORNER, CENTER_SIZE, CORNER_SIZE, got 'CENTRE'"),
    ("ssd_decode", (BOXES, BOXES * 0), {}, "priors 0 has no width or height: [0.0, 0.0, 0.0, 0.0]"),
    ("ssd_encode", (BOXES * [[1], [0]], BOXES), {}, "boxes 1 has no width or height"),
    ("ssd_match", ([1, 2],), {}, "overlaps must have shape (P, G), got (2,)"),
    ("ssd_nms", (BOXES, [1, 2, 3], 0.5), {}, "scores must have shape (N,) with N = 2, got (3,)"),
    ("ssd_nms", (BOXES, [1, 2], 0.5), {"eta": 0}, "eta must be above 0 and at most 1, got 0"),
    ("ssd_detections", (BOXES, np.ones((3, 4))), {}, "boxes must have shape (4, 4) or (3, 4, 4) for scores of (3, 4)"),
    ("ssd_detections", (BOXES, np.ones((3, 2))), {"eta": 2}, "eta must be above 0 and at most 1, got 2"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "options", "message"), BAD)
def test_errors(name: str, args: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(Error, match=f"^{name}: .*" + re.escape(message.removeprefix(f"{name}: "))):
        getattr(ops, name)(*args, **options)


def test_a_missing_argument_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'x_shape'"):
        ops.roi_pool_backward(DY, ROIS, ARGMAX)  # type: ignore[call-arg]


def test_lists_and_whole_numbers_are_taken() -> None:
    assert ops.bbox_overlaps([[0, 0, 9, 9]], [[0, 0, 9, 4], [20, 20, 29, 29]]).tolist() == [[0.5, 0]]  # type: ignore[arg-type]
    assert ops.nms([], 0.5).tolist() == [] and ops.bbox_overlaps([], BOXES).shape == (0, 2)  # type: ignore[arg-type]
    assert ops.nms(np.array([[0, 0, 200, 200, 9], [0, 0, 199, 200, 8]], np.uint8), 0.5).tolist() == [0]
    dx = ops.roi_pool_backward(DY.tolist(), ROIS[:, :, None, None], ARGMAX.tolist(), list(X.shape))  # type: ignore[arg-type]
    np.testing.assert_array_equal(dx, ops.roi_pool_backward(DY, ROIS, ARGMAX, X.shape))
    assert ops.shifted_anchors(BOXES, 0, 3, 1).shape == (0, 4)
    assert ops.roi_align_backward(DY[:0], ROIS[:0], 1.0, X.shape).shape == X.shape


def test_the_layers_call_the_functions_themselves() -> None:
    from minicaffe.layers.proposal import nms, proposal

    for module, name in ((nms, "nms"), (proposal, "nms")):
        assert not hasattr(getattr(module, name), "__wrapped__") and hasattr(getattr(ops, name), "__wrapped__")


def test_priors_by_hand() -> None:
    assert ops.aspect_ratios([2, 1], flip=True) == [1, 2, 0.5]
    np.testing.assert_allclose(ops.prior_sides([4], [9], [1, 4]), [[4, 4], [6, 6], [8, 2]])
    boxes = ops.prior_boxes([[4, 2]], (1, 2), (10, 20), (10, 10))  # type: ignore[arg-type]
    np.testing.assert_allclose(boxes[0, :, 0], [[0.15, 0.4, 0.35, 0.6], [0.65, 0.4, 0.85, 0.6]])


def test_detections_by_hand() -> None:
    """Class 1: box 0, and box 2 far away; box 1, nearly box 0, goes. Class 2: only box 1 is above 0.01."""
    boxes = [[0, 0, 0.5, 0.5], [0, 0, 0.5, 0.45], [0.6, 0.6, 0.9, 0.9]]
    scores = [[0.1, 0.1, 0.1], [0.8, 0.7, 0.3], [0, 0.5, 0.01]]
    found = ops.ssd_detections(boxes, scores)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, [[1, 0.8, *boxes[0]], [1, 0.3, *boxes[2]], [2, 0.5, *boxes[1]]])
    np.testing.assert_allclose(ops.ssd_detections([boxes] * 3, scores, keep_top_k=2)[:, 1], [0.8, 0.5])  # type: ignore[arg-type]
    assert ops.ssd_nms(boxes, scores[1], 0.45, top_k=1).tolist() == [0]  # type: ignore[arg-type]


def test_a_match_by_hand() -> None:
    """Truth 1 takes prior 0 (0.6), then truth 0 prior 1 (0.4); prior 2 takes truth 1 by the threshold."""
    truth, overlap = ops.ssd_match([[0.5, 0.6], [0.4, 0], [0, 0.5], [0.2, 0]], 0.5)  # type: ignore[arg-type]
    assert truth.tolist() == [1, 0, 1, -1] and overlap.tolist() == [0.6, 0.4, 0.5, 0.2]
    assert ops.ssd_match([[0.5, 0.6], [0.4, 0], [0, 0.5]], None)[0].tolist() == [1, 0, -1]  # type: ignore[arg-type]


@given(st.integers(0, 999), st.sampled_from(["CENTER_SIZE", "CORNER", "CORNER_SIZE"]))
def test_decode_undoes_encode(seed: int, code: str) -> None:
    random = np.random.default_rng(seed)
    corner = random.random((2, 5, 2))
    boxes, priors = np.concatenate([corner, corner + random.uniform(0.1, 1, (2, 5, 2))], axis=2)
    variances = random.uniform(0.1, 1, 4)
    codes = ops.ssd_encode(boxes, priors, variances, code)
    np.testing.assert_allclose(ops.ssd_decode(codes, priors, np.tile(variances, (5, 1)), code), boxes, atol=1e-12)
