"""DetectionGroupLoss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

ALL = "batch_size: 99 bg_multiple: 1"


def text(more: str = ALL, fields: str = "field_w: 20 field_h: 10 field_w: 8 field_h: 16", classes: int = 3) -> str:
    inside = f"cls_num: {classes} stride: 10 {fields} {more}"
    return f'type: "DetectionGroupLoss" detection_group_loss_param {{ {inside} }}'


def bottoms(images: int = 1, classes: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Maps of 2 x 3 cells: an object of class 2 in field 0 of cell (0, 1), the size of the field, a pixel to the right."""
    random = np.random.default_rng(images)
    labels = np.zeros((2 * images, 6, 2, 3))
    labels[0, :, 0, 1] = 2, 17, 5, 20, 10, 0.9
    return random.normal(size=(2 * images, classes, 2, 3)), random.normal(size=(2 * images, 4, 2, 3)) / 9, labels


def test_by_hand() -> None:
    """Twelve fields of equal scores; t* of the object is 2 / 20 in x, and t is 0.3 there and -2 in the height."""
    _, _, labels = bottoms()
    deltas = np.zeros((2, 4, 2, 3))
    deltas[0, :, 0, 1] = 0.3, 0, 0, -2
    case = LayerCase(text(ALL + " lambda: 4"), np.zeros((2, 3, 2, 3)), deltas, labels)
    (y,) = case.forward()
    boxes = 4 * (0.2**2 / 2 + 1.5) / 4
    np.testing.assert_allclose(y, [[[[np.log(3) + boxes, boxes]]]], rtol=1e-6)
    dx, dt, _ = case.backward(np.array([[[[2, 7]]]]))
    np.testing.assert_allclose(dt[0, :, 0, 1], [2 * 0.2, 0, 0, -2], rtol=1e-6)
    np.testing.assert_allclose(dx[0, :, 0, 1], np.array([1, 1, -2]) * 2 / 3 / 12, rtol=1e-6)


def test_bounds_keep_the_slope() -> None:
    """The height -2 counts as -log 4; its slope is not 0, so that it comes back."""
    _, _, labels = bottoms()
    deltas = np.zeros((2, 4, 2, 3))
    deltas[0, :, 0, 1] = 0.1, 0, 0, -2
    case = LayerCase(text(ALL + ' field_whr: 4 field_xyr: 2 bbox_loss_type: "Euclidean_L2"'), *bottoms()[:1], deltas, labels)
    assert case.forward()[0][0, 0, 0, 1] == pytest.approx(np.log(4) ** 2 / 2 / 4, rel=1e-6)
    dt = case.backward(np.array([[[[1, 0]]]]))[1]
    assert dt[0, 3, 0, 1] == pytest.approx(-np.log(4) / 4, rel=1e-6) and (deltas == case.bottom[1].data).all()


@pytest.mark.parametrize("more", [ALL, ALL + ' pos_neg_weighted: true bbox_loss_type: "Euclidean_L2" lambda: 2'])
def test_gradient(more: str) -> None:
    scores, deltas, labels = bottoms(2)
    case = LayerCase(text(more), scores, deltas, labels)
    case.forward()
    slopes = case.backward(np.array([[[[1.0, 0]]]]))
    for i in (0, 1):
        for at in np.ndindex(case.bottom[i].shape):
            values = []
            for step in (1e-5, -1e-5):
                case.bottom[i].data[at] += step
                values.append(case.forward()[0].ravel()[0])
                case.bottom[i].data[at] -= step
            assert (values[0] - values[1]) / 2e-5 == pytest.approx(slopes[i][at], abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "hard"), [("random", 0), ("bootstrap", 4), ("mixture", 2), ('bootstrap" neg_ranking_type: "conf_prob', 4)]
)
def test_mining(kind: str, hard: int) -> None:
    """One object and four of ten backgrounds; one overlaps by the threshold, which is too much.

    The worst are the least probable backgrounds.
    """
    scores, deltas, labels = bottoms()
    labels[1, 5, 1, 1] = 0.5
    scores[1, 0, 1, 1] = -50  # the worst of all
    more = f'batch_size: 5 bg_multiple: 4 bg_threshold: 0.5 neg_mining_type: "{kind}"'
    case = LayerCase(text(more), scores, deltas, labels)
    case.forward()
    used = case.backward(np.array([[[[1, 0]]]]))[0].any(axis=1)
    assert used.sum() == 5 and used[0, 0, 1] and not used[1, 1, 1]
    weights = np.exp(scores)
    background = np.where(labels[:, 0] + labels[:, 5] > 0, 2, weights[:, 0] / weights.sum(axis=1))
    assert used.ravel()[np.argsort(background.ravel())[:hard]].all()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 9), st.integers(0, 9))
def test_all_objects_and_a_multiple_of_background(objects: int, least: int) -> None:
    scores, deltas, labels = bottoms()
    labels[...] = 1
    labels[:, 0] = (np.arange(12) < objects).reshape(2, 2, 3)
    labels[:, 5] = 0
    case = LayerCase(text(f"batch_size: -1 bg_multiple: 2 min_num_neg: {least}"), scores, deltas, labels)
    case.forward()
    used = case.backward(np.array([[[[1, 0]]]]))[0].any(axis=1)
    assert used.sum() == objects + min(max(2 * objects, least), 12 - objects)


def test_nothing_to_learn_and_a_second_reshape() -> None:
    case = LayerCase(text(), *bottoms())
    for blob in case.bottom:
        blob.reshape(4, blob.shape[1], 1, 2)
        blob.data[...] = -1
    assert case.forward()[0].tolist() == [[[[0, 0]]]]
    assert not any(diff.any() for diff in case.backward(np.ones((1, 1, 1, 2))))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (text('neg_mining_type: "x"'), 'neg_mining_type must be one of random, bootstrap, mixture, got "x"'),
        (text('bbox_loss_type: "x"'), 'bbox_loss_type must be one of Smooth_L1, Euclidean_L2, got "x"'),
        (text("batch_size: 0"), "batch_size must be > 0, or -1, got 0"),
        (text("field_xyr: 0 field_whr: 2"), "needs field_whr and field_xyr > 0"),
        (text(classes=2), r"bottom 0 must be \(N \* 2, 2, H, W\), and H and W alike; got \(2, 3, 2, 3\)"),
    ],
)
def test_errors(kind: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(kind, *bottoms())


def test_a_class_without_scores() -> None:
    scores, deltas, labels = bottoms()
    labels[0, 0, 0, 1] = 3
    with pytest.raises(LayerError, match="class 3 has no scores: cls_num is 3"):
        LayerCase(text(), scores, deltas, labels).forward()
