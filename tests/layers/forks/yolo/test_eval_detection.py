"""EvalDetection."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

SIDE, CLASSES, BOXES = 2, 3, 2


def text(more: str = "") -> str:
    fields = f"side: {SIDE} num_class: {CLASSES} num_object: {BOXES}"
    return f'type: "EvalDetection" eval_detection_param {{ {fields} {more} }}'


def yolo() -> tuple[np.ndarray, np.ndarray]:
    """One image: in cell 0 two boxes of class 2 on an object of class 2, in cell 3 an object of class 1 that is difficult."""
    x, labels = np.zeros((1, CLASSES + 5 * BOXES, SIDE**2)), np.zeros((1, 7 * SIDE**2))
    x[0, 2, 0] = 0.8
    x[0, 3:5, 0] = 0.5, 0.9
    x[0, 5:, 0] = (0.25, 0.25, 0.4, 0.4, 0.25, 0.3, 0.4, 0.4)
    x[0, 1, 3], x[0, 3, 3] = 0.5, 0.5
    x[0, 5:9, 3] = (0.75, 0.75, 0.3, 0.2)
    labels[0, [4, 7]] = 1
    labels[0, 3] = 1
    labels[0, [8, 11]] = 2, 1
    labels[0, 12:16], labels[0, 24:28] = (0.25, 0.25, 0.4, 0.4), (0.75, 0.75, 0.3, 0.2)
    return x, labels


def rows(y: np.ndarray, image: int = 0) -> list[list[float]]:
    return np.round(y[image, CLASSES:].reshape(-1, 4), 6).tolist()


def test_by_hand() -> None:
    """The best box that overlaps the object is right, the other wrong; the box of the difficult one is neither."""
    case = LayerCase(text("sqrt: false constriant: false"), *yolo())
    (y,) = case.forward()
    assert y.shape == (1, CLASSES + 4 * SIDE**2 * BOXES) and y[0, :CLASSES].tolist() == [0, 0, 1]
    assert case.layer.choice is not None and case.layer.choice.whose == "caffe-yolo"
    empty = [[0, 0, 0, 1]] * 4  # of class 0, in the empty cells
    assert rows(y) == [*empty, [1, 0.25, 0, 0], [1, 0, 0, 1], [2, 0.72, 1, 0], [2, 0.4, 0, 1]]


@pytest.mark.parametrize(("kind", "score"), [("OBJ", 0.9), ("PROB", 0.8), ("MULTIPLY", 0.72)])
def test_scores_and_suppression(kind: str, score: float) -> None:
    """One box is left of the two in cell 0, which overlap by 0.14 / 0.18; empty boxes overlap nothing and stay."""
    (y,) = LayerCase(text(f"sqrt: false constriant: false nms: 0.7 score_type: {kind}"), *yolo()).forward()
    assert [row[:2] for row in rows(y) if row[0] == 2] == [[2, score]]
    assert rows(y)[-1] == [0, 0, 0, 0]


def region(labels: np.ndarray, more: str = "nms: 0.45 biases: 1 biases: 1 biases: 0.5 biases: 1") -> LayerCase:
    """Two images; in the first a box of class 1 fills cell (0, 1) and one of class 1 cell (1, 0); the others score nothing."""
    x = np.zeros((2, BOXES, 5 + CLASSES, SIDE, SIDE))
    x[:, :, 4] = -20
    for (row, column), logit in (((0, 1), 3.0), ((1, 0), 2.0)):
        x[0, 0, 4, row, column], x[0, 0, 6, row, column] = logit, 9
    return LayerCase(text(more), x.reshape(2, -1, SIDE, SIDE), labels, np.zeros((2, 3, 8, 8)))


def yolo2s() -> np.ndarray:
    labels = np.zeros((2, 10))
    labels[0, :5] = 1, 0.75, 0.25, 0.5, 0.5
    return labels


def intels() -> np.ndarray:
    return np.array([[[[0, 2, 0, 0.5, 0, 1, 0.5, 0], [-1, 0, 0, 0, 0, 0, 0, 0]]]], float)


@pytest.mark.parametrize(("labels", "whose"), [(yolo2s(), "caffe-yolov2"), (intels(), "Intel Caffe")])
def test_of_anchors(labels: np.ndarray, whose: str) -> None:
    """The box on the object is right; the one that overlaps no object is neither, as there is an object of its class."""
    case = region(labels)
    (y,) = case.forward()
    assert case.layer.choice is not None and case.layer.choice.whose == whose
    assert y[0, :CLASSES].tolist() == [0, 1, 0] and not y[1].any()
    sure = 1 / (1 + 2 * np.exp(-9))
    expected = [[1, sure / (1 + np.exp(-3)), 1, 0], [1, sure / (1 + np.exp(-2)), 0, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(y[0, CLASSES:].reshape(-1, 4)[:3], expected, rtol=1e-6)


def test_of_anchors_without_an_object_of_the_class() -> None:
    labels = yolo2s()
    labels[0, 0] = 2
    (y,) = region(labels).forward()
    assert y[0, CLASSES:].reshape(-1, 4)[:2, 2:].tolist() == [[0, 1], [0, 1]]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6))
def test_at_most_one_right_box_an_object(seed: int) -> None:
    random = np.random.default_rng(seed)
    x, labels = random.uniform(size=(2, 52)), np.zeros((2, 28))
    labels[:, 4:8] = random.integers(0, 2, (2, 4))
    labels[:, 8:12] = random.integers(0, CLASSES, (2, 4))
    labels[:, 12:] = random.uniform(size=(2, 16))
    (y,) = LayerCase(text("threshold: 0.2"), x, labels).forward()
    for image in y:
        table = image[CLASSES:].reshape(-1, 4)
        right = np.bincount(table[table[:, 2] == 1, 0].astype(int), minlength=CLASSES)
        assert (right <= image[:CLASSES]).all()
        assert (table[:, 2] + table[:, 3] == 1).all()


def test_a_second_reshape_and_no_gradient() -> None:
    case = LayerCase(text(), *yolo())
    case.bottom[0].reshape(3, 52)
    case.bottom[1].reshape(3, 28)
    case.bottom[0].data[...] = case.bottom[1].data[...] = 0
    assert case.forward()[0].shape == (3, 35)
    assert not any(diff.any() for diff in case.backward(np.ones((3, 35))))


@pytest.mark.parametrize(
    ("labels", "more", "message"),
    [
        (yolo2s(), "nms: 0.4 biases: 1 biases: 1", "1 anchors in biases for num_object 2"),
        (
            yolo2s(),
            "biases: 1 biases: 1 biases: 1 biases: 1",
            "nms must be >= 0 with biases: without it the forks find nothing",
        ),
        (
            yolo2s()[:, :9],
            "nms: 1 biases: 1 biases: 1 biases: 1 biases: 1",
            r"must be \(2, 5 T\), caffe-yolov2's, or \(1, 1, G",
        ),
        (yolo2s() + 4, "nms: 1 biases: 1 biases: 1 biases: 1 biases: 1", "5 is no class from 0 to 2"),
        (
            yolo2s(),
            "nms: 1 side: 3 biases: 1 biases: 1 biases: 1 biases: 1",
            r"bottom 0 must be \(2, 16, 3, 3\), 2 boxes of 5 \+ 3",
        ),
        (yolo2s(), "", r"bottom 0 must be \(2, 52\): 13 numbers for each of 2 x 2 cells; got shape"),
    ],
)
def test_errors(labels: np.ndarray, more: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        region(labels, more).forward()
