"""RegionLoss."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

SCALES = "object_scale: 5 noobject_scale: 1.5 class_scale: 2 coord_scale: 3"


def text(more: str = SCALES, biases: tuple[float, ...] = (1, 2, 3, 1), classes: int = 3) -> str:
    anchors = " ".join(f"biases: {bias}" for bias in biases)
    return (
        f'type: "RegionLoss" region_loss_param {{ num: {len(biases) // 2} num_class: {classes} thresh: 0.6 {anchors} {more} }}'
    )


def late(case: LayerCase) -> LayerCase:
    """After the images that draw boxes to their anchors."""
    case.layer.restore_training_state({"forwards": 12800})
    return case


def test_by_hand() -> None:
    """One cell and anchor, no truth: objectness 1/2, and nothing else; then also half a pixel of size off the anchor."""
    x = np.array([9.0, 9, 0.5, -2, 0, 1, 2]).reshape(1, 7, 1, 1)
    case = late(LayerCase(text("noobject_scale: 4", (1, 1), 2), x, np.zeros((1, 5))))
    assert case.forward()[0] == pytest.approx((4 * 0.5 * 0.25) ** 2)
    dx = case.backward(np.array(1.0))[0].reshape(-1)
    assert dx.tolist() == [0, 0, 0, 0, pytest.approx(2 * 0.5 * 4 * (0.5 - 0.75) * 0.25 * -1), 0, 0]
    case.layer.restore_training_state({"forwards": 0})
    s = 1 / (1 + math.exp(-9))
    place = 2 * (0.01 * (0.5 - s) * s * (1 - s)) ** 2 + (0.01 * 0.5) ** 2 + (0.01 * 2) ** 2
    assert case.forward()[0] == pytest.approx(0.25 + place)


def original(
    x: np.ndarray, truths: np.ndarray, anchors: np.ndarray, early: bool, match: bool, rescore: bool, favours_small: bool
) -> float:
    """The fork's loops over one image after the other, with SCALES."""
    images, channels, side, _ = x.shape
    count, wide = len(anchors), channels // len(anchors)

    def sigmoid(v: float) -> float:
        return 1 / (1 + math.exp(-v))

    def iou(a: list[float], b: list[float]) -> float:
        w, h = (min(a[k] + a[k + 2] / 2, b[k] + b[k + 2] / 2) - max(a[k] - a[k + 2] / 2, b[k] - b[k + 2] / 2) for k in (0, 1))
        shared = 0 if w < 0 or h < 0 else w * h
        return shared / (a[2] * a[3] + b[2] * b[3] - shared)

    total = 0.0
    for image, rows in zip(x, truths):
        delta: dict[tuple[int, int, int, int], float] = {}

        def numbers(a: int, j: int, i: int, image: np.ndarray = image) -> list[float]:
            return [float(v) for v in image[a * wide : (a + 1) * wide, j, i]]

        def predicted(a: int, j: int, i: int) -> list[float]:
            v = numbers(a, j, i)
            size = [math.exp(v[2 + k]) * anchors[a, k] / side for k in (0, 1)]
            return [(i + sigmoid(v[0])) / side, (j + sigmoid(v[1])) / side, *size]

        def draw(box: list[float], a: int, j: int, i: int, scale: float, delta=delta) -> None:
            v = numbers(a, j, i)
            for k, corner in ((0, i), (1, j)):
                s = sigmoid(v[k])
                delta[a, j, i, k] = scale * (box[k] * side - corner - s) * s * (1 - s)
                delta[a, j, i, 2 + k] = scale * (math.log(box[2 + k] * side / anchors[a, k]) - v[2 + k])

        for a, j, i in np.ndindex(count, side, side):
            s = sigmoid(numbers(a, j, i)[4])
            best = max((iou(predicted(a, j, i), list(row[1:])) for row in rows if row[3]), default=0)
            delta[a, j, i, 4] = 0 if best > 0.6 else 1.5 * s * s * (1 - s)
            if early:
                draw([(i + 0.5) / side, (j + 0.5) / side, *(anchors[a] / side)], a, j, i, 0.01)
        for row in rows:
            if not row[3]:
                break
            i, j = int(row[1] * side), int(row[2] * side)
            shapes = [list(anchors[a] / side) if match else predicted(a, j, i)[2:] for a in range(count)]
            a = max(range(count), key=lambda a: iou([0, 0, *shapes[a]], [0, 0, *row[3:]]))
            draw(list(row[1:]), a, j, i, 3 * (2 - row[3] * row[4]) if favours_small else 3)
            v = numbers(a, j, i)
            s = sigmoid(v[4])
            target = iou(predicted(a, j, i), list(row[1:])) if rescore else 1
            delta[a, j, i, 4] = 5 * (target - s) * s * (1 - s)
            weights = np.exp(v[5:])
            for k, weight in enumerate(weights):
                delta[a, j, i, 5 + k] = 2 * ((k == row[0]) - weight / weights.sum())
        total += sum(value * value for value in delta.values())
    return total / images


@given(st.integers(0, 10**6), st.integers(1, 3), st.booleans(), st.booleans(), st.booleans())
def test_agrees_with_the_forks_loops(seed: int, boxes: int, early: bool, match: bool, rescore: bool) -> None:
    random = np.random.default_rng(seed)
    x = random.normal(size=(2, 16, 3, 3))
    truths = np.zeros((2, 3, 5))
    truths[:, :boxes] = random.uniform(0.05, 0.95, (2, boxes, 5))
    truths[:, :boxes, 0] = random.integers(0, 3, (2, boxes))
    case = LayerCase(text(f"{SCALES} bias_match: {match:d} rescore: {rescore:d}"), x, truths.reshape(2, 15))
    if not early:
        late(case)
    expected = original(x, truths, np.array([[1.0, 2], [3, 1]]), early, match, rescore, not rescore)
    assert case.forward()[0] == pytest.approx(expected, rel=1e-9)


@given(st.integers(0, 10**6), st.sampled_from(["yolov2", ""]), st.booleans(), st.integers(0, 1))
def test_caffe_yolov2s_agrees_with_its_loops(seed: int, fork: str, early: bool, rescore: int) -> None:
    """Not divided by 2 images; as rescore 1 but for the matched boxes' objectness, which is to be 1."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(2, 16, 3, 3))
    truths = np.zeros((2, 30 if not fork else 4, 5))
    truths[:, 0] = random.uniform(0.05, 0.95, (2, 5))
    truths[:, 0, 0] = random.integers(0, 3, 2)
    case = LayerCase(text(f"{SCALES} rescore: {rescore}"), x, truths, fork=fork)
    if not early:
        late(case)
    expected = original(x, truths, np.array([[1.0, 2], [3, 1]]), early, True, rescore=False, favours_small=False)
    assert case.forward()[0] == pytest.approx(2 * expected, rel=1e-9)
    assert str(case.layer.choice) == f"RegionLoss of caffe-yolov2: {'fork yolov2' if fork else '30 truths'}"


def test_the_fork_tells_before_the_number_of_truths() -> None:
    x, truths = np.zeros((1, 16, 3, 3)), np.zeros((1, 150))
    assert str(LayerCase(text(), x, truths, fork="yolo").layer.choice) == "RegionLoss of MobileNet-YOLO: fork yolo"
    assert LayerCase(text(), x, np.zeros((1, 145))).layer.choice is None


TRUTHS = np.array(
    [[[0, 0.4, 0.7, 0.3, 0.2], [2, 0.1, 0.2, 0.7, 0.4], [1, 0.42, 0.69, 0.2, 0.3]], [[1, 0.5, 0.5, 0.9, 0.9]] + [[0] * 5] * 2]
)


@pytest.mark.parametrize(("early", "rescore", "fork"), [(True, 0, ""), (False, 1, ""), (True, 1, "yolov2")])
def test_gradient(early: bool, rescore: int, fork: str) -> None:
    x = np.random.default_rng(2).normal(size=(2, 16, 2, 2)) / 2
    case = LayerCase(text(f"{SCALES} rescore: {rescore}"), x, TRUTHS, fork=fork)
    (case if early else late(case)).check_gradient()


def test_the_state_of_training() -> None:
    case = LayerCase(text(), np.zeros((2, 16, 3, 3)), TRUTHS)
    case.forward()
    assert case.layer.training_state() == {"forwards": 1}
    with pytest.raises(ValueError, match="forwards"):
        case.layer.restore_training_state({"forwards": -1})


@pytest.mark.parametrize("shape", [(1, 16, 5, 5), (0, 16, 2, 2)])
def test_a_second_reshape(shape: tuple[int, ...]) -> None:
    case = LayerCase(text(), np.zeros((2, 16, 3, 3)), TRUTHS)
    case.bottom[0].reshape(*shape)
    case.bottom[1].reshape(shape[0], 10)
    case.bottom[1].data[...] = 0
    assert case.forward()[0] == pytest.approx(1.5**2 * 0.125**2 * 2 * 25 if shape[0] else 0)
    assert case.backward(np.array(1.0))[0].shape == shape


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        ([3, 0.5, 0.5, 0.1, 0.1], "image 1: 3 is no class from 0 to 2"),
        ([0.5, 0.5, 0.5, 0.1, 0.1], "image 1: 0.5 is no class from 0 to 2"),
        ([0, 1, 0.5, 0.1, 0.1], r"image 1: a box must have its centre in \[0, 1\) and a size > 0, got a centre \(1, 0.5\)"),
        ([0, 0.5, 0.5, 0.1, 0], r"and size 0.1 x 0"),
        ([0, 0.5, math.nan, 0.1, 0.1], r"got a centre \(0.5, nan\)"),
        ([0, 0.5, 0.5, math.inf, 0.1], r"and size inf x 0.1"),
    ],
)
def test_truths_that_are_none(truth: list[float], message: str) -> None:
    truths = TRUTHS.copy()
    truths[1, 0] = truth
    case = LayerCase(text(), np.zeros((2, 16, 3, 3)), truths)
    with pytest.raises(LayerError, match=message):
        case.forward()


@pytest.mark.parametrize(
    ("layer", "x", "truths", "message"),
    [
        (text(), (2, 15, 3, 3), (2, 15), r"x must be \(N, 16, S, S\): 2 boxes of 5 \+ 3 numbers a cell; got shape"),
        (text(), (2, 16, 3, 4), (2, 15), r"x must be \(N, 16, S, S\)"),
        (text(), (2, 16, 3, 3), (2, 14), r"the truths must be \(2, 5 T\), 5 numbers a box; got shape \(2, 14\)"),
        (text(), (2, 16, 3, 3), (3, 15), r"the truths must be \(2, 5 T\)"),
        (text("num: 3"), (2, 24, 3, 3), (2, 15), "biases must be 3 pairs of a width and a height"),
        (text(biases=(1, 0)), (2, 8, 3, 3), (2, 15), "biases must be > 0, got 0"),
        (text("coords: 5"), (2, 16, 3, 3), (2, 15), "coords must be 4, got 5"),
        (text("num_class: 0"), (2, 16, 3, 3), (2, 15), "needs num > 0 and num_class > 0"),
        (text('softmax_tree: "9k.tree"'), (2, 16, 3, 3), (2, 15), "softmax_tree is not built"),
        (text('class_map: "a.map"'), (2, 16, 3, 3), (2, 15), "class_map is not built"),
    ],
)
def test_errors(layer: str, x: tuple[int, ...], truths: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match='RegionLoss layer "layer": ' + message):
        LayerCase(layer, np.zeros(x), np.zeros(truths))
