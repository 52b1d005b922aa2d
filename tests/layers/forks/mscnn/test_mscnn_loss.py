"""MS-CNN's DetectionLoss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

ALL = 'sample_mode: "all"'


def text(more: str = ALL, size: str = "field_w: 20 field_h: 10 downsample_rate: 10", classes: int = 3) -> str:
    return f'type: "DetectionLoss" detection_loss_param {{ cls_num: {classes} {size} {more} }}'


def bottoms(images: int = 1, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Maps of 2 x 3 cells: an object of class 2 in cell (0, 1) of the first, the size of the field, a pixel to the right."""
    x = np.random.default_rng(images).normal(size=(images, classes + 4, 2, 3))
    x[:, classes:] /= 9
    labels = np.zeros((images, 6, 2, 3))
    labels[0, :, 0, 1] = 2, 17, 5, 20, 10, 0.9
    return x, labels


def used(case: LayerCase) -> np.ndarray:
    """Which cells (N, 2, 3) get a gradient of their scores."""
    case.forward()
    return np.asarray(case.backward(np.array([[[[1.0, 0]]]]))[0][:, :3].any(axis=1))


def test_by_hand() -> None:
    """Six fields of equal scores; t* of the object is 2 / 20 in x, and t is 0.3 there and -2, bounded to -log 2, in height."""
    x, labels = np.zeros((1, 7, 2, 3)), bottoms()[1]
    x[0, 3:, 0, 1] = 0.3, 0, 0, -2
    case = LayerCase(text(ALL + " lambda: 4"), x, labels)
    (y,) = case.forward()
    boxes = 4 * (0.2**2 + np.log(2) ** 2) / 2 / 4
    np.testing.assert_allclose(y, [[[[np.log(3) + boxes, boxes]]]], rtol=1e-6)
    dx, _ = case.backward(np.array([[[[2, 7]]]]))
    np.testing.assert_allclose(dx[0, 3:, 0, 1], [2 * 0.2, 0, 0, -2 * np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(dx[0, :3, 0, 1], np.array([1, 1, -2]) * 2 / 3 / 6, rtol=1e-6)


def test_weights() -> None:
    """The object's overlap, 0.9, does not change its part, 1 of 5, of the weight; the other five share the rest."""
    x, labels = bottoms()
    x[...] = 0
    for more, own in (("iou_weighted: true", 0.9), ("iou_weighted: true pos_neg_weighted: true bg_multiple: 4", 6 / 5)):
        case = LayerCase(text(f"{ALL} {more}"), x, labels)
        rest = 5 if "pos" not in more else 6 * 4 / 5
        np.testing.assert_allclose(case.forward()[0][0, 0, 0, 0], np.log(3) * (own + rest) / 6 + 0.1**2 / 8, rtol=1e-6)
        dx = case.backward(np.array([[[[1, 0]]]]))[0]
        np.testing.assert_allclose(dx[0, :3, 0, 1], np.array([1, 1, -2]) * own / 3 / 6, rtol=1e-6)


@pytest.mark.parametrize("more", ["", "pos_neg_weighted: true bb_smooth: false lambda: 2"])
def test_gradient(more: str) -> None:
    case = LayerCase(text(f"{ALL} {more}"), *bottoms(2))
    case.forward()
    slopes = case.backward(np.array([[[[1.0, 0]]]]))[0]
    for at in np.ndindex(case.bottom[0].shape):
        values = []
        for step in (1e-5, -1e-5):
            case.bottom[0].data[at] += step
            values.append(case.forward()[0].ravel()[0])
            case.bottom[0].data[at] -= step
        assert (values[0] - values[1]) / 2e-5 == pytest.approx(slopes[at], abs=1e-6)


def test_bootstrap_takes_the_highest_scores() -> None:
    """At least four for each class: of class 1 the first four of the five, of class 2, with equal scores, the last four."""
    x, labels = np.zeros((1, 7, 2, 3)), bottoms()[1]
    x[0, 1] = 9 - np.arange(6).reshape(2, 3)
    labels[0, 5, 0, 0] = 0.6  # overlaps too much
    mask = used(LayerCase(text('sample_mode: "bootstrap"', classes=3), x, labels))
    assert mask.tolist() == [[[False, True, True], [True, True, True]]]
    labels[0, :, 0, 1] = 0
    x[0, 2] = x[0, 1]
    mask = used(LayerCase(text('sample_mode: "bootstrap"'), x, labels))
    assert mask.tolist() == [[[False, True, True], [True, True, False]]]


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(["random", "mixture"]), st.integers(0, 3), st.integers(0, 4))
def test_sampling_finds_background_alone(kind: str, objects: int, multiple: int) -> None:
    x, labels = bottoms(2)
    labels[...] = 1
    labels[:, 0] = (np.arange(12) < objects).reshape(2, 2, 3)
    labels[:, 5] = 0
    labels[1, 5, 1] = 0.6
    mask = used(LayerCase(text(f'sample_mode: "{kind}" bg_multiple: {multiple}'), x, labels))
    assert mask[labels[:, 0] == 1].all() and not mask[1, 1].any()
    draws = max(8, multiple * objects)
    assert kind == "mixture" or mask[0].sum() <= objects + draws


def test_no_object_ignored_ones_and_a_second_reshape() -> None:
    case = LayerCase(text() + " loss_param { ignore_label: -1 }", *bottoms())
    for blob in case.bottom:
        blob.reshape(2, blob.shape[1], 1, 3)
        blob.data[...] = -1
    assert case.forward()[0].tolist() == [[[[0, 0]]]]
    assert not case.backward(np.ones((1, 1, 1, 2)))[0].any()
    case.bottom[1].data[0, 0] = 0
    assert case.forward()[0].ravel().tolist() == pytest.approx([np.log(3), 0], rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (text("side: 3"), "side is of YOLO's layer, but cls_num of MS-CNN's"),
        (text(size="field_w: 3 field_h: 2"), "needs field_w, field_h, downsample_rate and cls_num > 0"),
        (text("field_xyr: 0"), "needs field_whr and field_xyr > 0"),
        (text("coord_num: 5"), "coord_num must be 4, got 5"),
        (text(classes=2), r"bottom 0 must be \(N, 6, H, W\), and H and W alike; got \(1, 7, 2, 3\)"),
    ],
)
def test_errors(kind: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(kind, *bottoms())


def test_a_class_without_scores() -> None:
    x, labels = bottoms()
    labels[0, 0, 0, 1] = 3
    with pytest.raises(LayerError, match="class 3 has no scores: cls_num is 3"):
        LayerCase(text(), x, labels).forward()
