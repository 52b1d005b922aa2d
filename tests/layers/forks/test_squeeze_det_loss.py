"""SqueezeDetLoss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

NONE = [-1] * 5


def text(more: str = "pos_conf: 3 neg_conf: 2 lambda_bbox: 5", shapes: tuple[int, ...] = (20, 10, 8, 16)) -> str:
    sizes = " ".join(f"anchor_shapes: {size}" for size in shapes)
    inside = f"classes: 3 anchors_per_grid: 2 {sizes} {more}"
    return f'type: "SqueezeDetLoss" squeezedet_param {{ {inside} }} transform_param {{ crop_size: 60 }}'


def bottoms(*labels: list[float], images: int = 1, seed: int = 0) -> list[np.ndarray]:
    """Maps of 1 x 2 cells of two anchors, with the cells' centres at (20, 30) and (40, 30), and one row of labels an image."""
    random = np.random.default_rng(seed)
    scores = np.exp(random.normal(size=(images, 4, 3)))
    confidences, moves = random.uniform(0.1, 0.9, (images, 1, 2, 2)), random.normal(size=(images, 1, 2, 8)) / 9
    return [scores / scores.sum(axis=-1, keepdims=True), confidences, moves, np.array(labels, float)]


def test_by_hand() -> None:
    """The object, of class 2, is as large as anchor 0 of cell 1, a pixel to the right; the anchor's box is 20 x 10 pixels."""
    x, confidences, moves, labels = bottoms([31, 25, 51, 35, 2])
    moves[...] = 0
    case = LayerCase(text("pos_conf: 3 neg_conf: 2 lambda_bbox: 5 lambda_conf: 4"), x, confidences, moves, labels)
    iou = 19 * 10 / (200 + 200 - 190)
    c = confidences.ravel()
    t = np.array([1.5 / 20, 0.5 / 10, np.log(11 / 10), np.log(21 / 20)])
    told = -4 * np.log(x[0, 2, 2]) + 3 * (c[2] - iou) ** 2 + 2 / 3 * (c[0] ** 2 + c[1] ** 2 + c[3] ** 2) + 5 * (t**2).sum()
    assert case.forward()[0].item() == pytest.approx(told, rel=1e-6)
    dx, dc, dt, _ = case.backward(np.array(2.0))
    assert dx[0, 2, 2] == pytest.approx(-2 * 4 / (x[0, 2, 2] + 1e-7), rel=1e-6) and np.count_nonzero(dx) == 1
    np.testing.assert_allclose(dc.ravel(), [8 / 3 * c[0], 8 / 3 * c[1], 12 * (c[2] - iou), 8 / 3 * c[3]], rtol=1e-5)
    np.testing.assert_allclose(dt[0, 0, 1], [*(-20 * t), 0, 0, 0, 0], rtol=1e-4, atol=1e-7)
    assert not dt[0, 0, 0].any()


def test_cells_lie_column_by_column() -> None:
    """As in the fork: of maps of 2 x 3, cell 1 of row 0 is centred in column 1, row 2."""
    case = LayerCase(text(), np.zeros((1, 12, 3)), np.zeros((1, 2, 3, 2)), np.zeros((1, 2, 3, 8)), np.full((1, 5), -1.0))
    assert case.layer.anchors[::2].tolist() == [[x, y, 20, 10] for x in (15, 30, 45) for y in (20, 40)]


@pytest.mark.parametrize(
    ("more", "number"), [("pos_conf: 3 neg_conf: 2", 0), ("pos_conf: 3 neg_conf: 2", 1), ("pos_conf: 0 neg_conf: 1", 2)]
)
def test_gradient(more: str, number: int) -> None:
    """Two images, of two objects and of one; of the moves without the term of the overlap, which is a constant there."""
    labels = [31, 25, 51, 35, 2, 30, 22, 53, 33, 1], [8, 20, 30, 45, 0, *NONE]
    case = LayerCase(text(f"{more} lambda_bbox: 5 lambda_conf: 2"), *bottoms(*labels, images=2))
    case.forward()
    slopes = case.backward(np.array(1.0))[number]
    for at in np.ndindex(slopes.shape):
        values = []
        for step in (1e-5, -1e-5):
            case.bottom[number].data[at] += step
            values.append(case.forward()[0].item())
            case.bottom[number].data[at] -= step
        assert (values[0] - values[1]) / 2e-5 == pytest.approx(slopes[at], abs=1e-5)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 9))
def test_objects_have_no_order_and_images_are_averaged(seed: int) -> None:
    one, other = [31, 25, 51, 35, 2], [8, 20, 30, 45, 0]
    (first,), (second,), (both,) = (
        LayerCase(text(), *bottoms(*labels, images=len(labels), seed=seed)).forward()
        for labels in ([[*one, *other]], [[*other, *one]], [[*one, *other], [*NONE, *one]])
    )
    assert first.item() == pytest.approx(second.item(), rel=1e-9)
    inputs = [x[:1] for x in bottoms([0.0], [0.0], images=2, seed=seed)[:3]]
    (alone,) = LayerCase(text(), *inputs, np.array([[*one, *other]])).forward()
    assert both.item() == pytest.approx(alone.item() / 2, rel=1e-6)


def test_no_object_and_a_second_reshape() -> None:
    case = LayerCase(text(), *bottoms(NONE))
    case.bottom[0].reshape(2, 1, 3, 6)
    case.bottom[1].reshape(2, 1, 3, 2)
    case.bottom[2].reshape(2, 1, 3, 8)
    case.bottom[3].reshape(2, 10)
    case.bottom[3].data[...] = -1
    assert case.forward()[0].item() == 0
    assert not any(diff.any() for diff in case.backward(np.array(1.0)))
    assert len(case.layer.anchors) == 6


@pytest.mark.parametrize(
    ("kind", "labels", "message"),
    [
        (text("pos_conf: 3"), NONE, "needs neg_conf"),
        (text(shapes=(20, 10)), NONE, r"needs 4 anchor_shapes > 0, a width and a height for each anchor; got \[20, 10\]"),
        (text(), [1, 2], r"the labels must be \(1, 5 T\), got shape \(1, 2\)"),
        (text(), [1, 2, 3, 4, 3], r"the box \[1.0, 2.0, 3.0, 4.0\] of class 3 is none, or no class from 0 to 2"),
        (text(), [5, 2, 3, 4, 0], r"the box \[5.0, 2.0, 3.0, 4.0\] of class 0 is none"),
        (text(), [1, 2, 3, 4, 0] * 4, "4 objects need more than 4 anchors"),
    ],
)
def test_errors(kind: str, labels: list[float], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(kind, *bottoms(labels)).forward()


def test_shapes() -> None:
    x, confidences, moves, labels = bottoms(NONE)
    with pytest.raises(LayerError, match=r"bottom 1 must be \(N, H, W, 2\), got shape \(1, 1, 4, 1\)"):
        LayerCase(text(), x, confidences.reshape(1, 1, 4, 1), moves, labels)
    with pytest.raises(LayerError, match=r"bottom 2 must have \(1, 16\) values, got shape \(1, 1, 2, 7\)"):
        LayerCase(text(), x, confidences, moves[..., :7], labels)
