"""DetectionLoss."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import Net
from minicaffe.errors import LayerError
from minicaffe.formats.prototxt import parse_net

pytestmark = pytest.mark.usefixtures("device")

SIDE, CLASSES, BOXES = 2, 3, 2


def text(more: str = "") -> str:
    fields = f"side: {SIDE} num_class: {CLASSES} num_object: {BOXES}"
    return f'type: "DetectionLoss" detection_loss_param {{ {fields} {more} }}'


def labels(*objects: tuple[int, int, tuple[float, float, float, float]], images: int = 1) -> np.ndarray:
    """Of image 0: cell, class, box."""
    made = np.zeros((images, 7 * SIDE**2))
    for cell, kind, box in objects:
        made[0, [4 + cell, 8 + cell]] = 1, kind
        made[0, 12 + 4 * cell : 16 + 4 * cell] = box
    return made


def cells(images: int = 1) -> np.ndarray:
    return np.zeros((images, CLASSES + 5 * BOXES, SIDE**2))


def test_by_hand() -> None:
    """In cell 3 an object of class 1. Box 1 overlaps it, box 0 does not. With sqrt, sizes 0.49 are 0.7."""
    x = cells()
    x[0, :CLASSES, 3] = 0.2, 0.7, 0.1
    x[0, CLASSES : CLASSES + BOXES, 3] = 0.5, 0.8
    x[0, CLASSES, 1] = 0.4  # a box of an empty cell
    x[0, -4:, 3] = 0.6, 0.5, 0.7, 0.6
    true = labels((3, 1, (0.75, 0.75, 0.49, 0.25)))
    case = LayerCase(text("constriant: true coord_scale: 5"), x, true)
    classes = 0.2**2 + 0.3**2 + 0.1**2
    coordinates = 5 * ((0.6 - 0.5) ** 2 + 0 + 0 + (0.6 - 0.5) ** 2)
    others = 0.5 * (0.5**2 + 0.4**2) / (4 * 2 - 1)
    assert case.forward()[0].item() == pytest.approx(classes + coordinates + 0.2**2 + others, rel=1e-6)
    (dx,) = case.backward(np.array(3.0))[:1]
    assert dx[0, 1, 3] == pytest.approx(3 * 2 * (0.7 - 1), rel=1e-6)
    assert dx[0, CLASSES, 1] == pytest.approx(3 * 2 * 0.5 * 0.4 / 7, rel=1e-6)
    assert not dx[0, CLASSES + BOXES : -4].any()


def test_the_nearest_box_stands_where_none_overlaps() -> None:
    x = cells()
    x[0, CLASSES + BOXES :, 0] = (0.9, 0.9, 0.1, 0.1, 0.7, 0.7, 0.1, 0.1)
    case = LayerCase(text("sqrt: false"), x, labels((0, 2, (0.2, 0.2, 0.1, 0.1))))
    case.forward()
    dx = case.backward(np.array(1.0))[0]
    assert not dx[0, -8:-4, 0].any() and dx[0, -4:-2, 0].all()


@pytest.mark.parametrize("more", ["", "constriant: true sqrt: false object_scale: 2 noobject_scale: 0.25 class_scale: 3"])
def test_gradient(more: str) -> None:
    x = np.random.default_rng(1).uniform(0.2, 0.8, (2, *cells().shape[1:]))
    true = labels((0, 2, (0.3, 0.4, 0.2, 0.3)), (3, 0, (0.8, 0.7, 0.5, 0.4)), images=2)
    LayerCase(text(more), x, true).check_gradient()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 3), st.integers(0, 2), st.floats(0.05, 0.95), st.floats(0.05, 0.95))
def test_it_is_0_where_all_is_right(cell: int, kind: int, width: float, height: float) -> None:
    x, box = cells(), (0.3, 0.6, width, height)
    x[0, kind, cell] = x[0, CLASSES + 1, cell] = 1
    x[0, -4:, cell] = *box[:2], math.sqrt(width), math.sqrt(height)
    case = LayerCase(text(), x, labels((cell, kind, box)))
    assert case.forward()[0].item() == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(case.backward(np.array(1.0))[0], 0, atol=1e-7)


def test_no_object_and_a_second_reshape() -> None:
    case = LayerCase(text(), cells(), labels())
    case.bottom[0].reshape(2, 52)
    case.bottom[0].data[...] = 1
    case.bottom[1].reshape(2, 28)
    assert case.forward()[0].item() == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("more", "bottoms", "message"),
    [
        ("field_w: 2", (cells(), labels()), "field_w is of MS-CNN's layer, which needs cls_num"),
        ("side: 0", (cells(), labels()), "needs side, num_class and num_object > 0"),
        ("", (cells()[:, :12], labels()), r"bottom 0 must be \(1, 52\): 13 numbers for each of 2 x 2 cells; got shape"),
        (
            "",
            (cells(), labels()[:, :27]),
            r"bottom 1 must be \(1, 28\): 7 numbers for each of 2 x 2 cells; got shape \(1, 27\)",
        ),
        ("", (cells(), labels((0, 3, (0, 0, 1, 1)))), "3 is no class from 0 to 2"),
        ("", (cells(), labels((0, 1, (0, 0, -1, 1)))), "a true box has the size -1"),
    ],
)
def test_errors(more: str, bottoms: tuple[np.ndarray, np.ndarray], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text(more), *bottoms).forward()


def test_an_error_names_the_fields_line() -> None:
    inputs = 'input: "x" input_shape { dim: 13 } input: "t" input_shape { dim: 28 }'
    layer = 'layer { name: "loss" bottom: "x" bottom: "t" top: "loss" ' + text("\nfield_w: 2") + " }"
    with pytest.raises(LayerError, match=r"field_w is of MS-CNN's layer, which needs cls_num \(net\.prototxt:2\)"):
        Net(parse_net(f"{inputs} {layer}", "net.prototxt"))
