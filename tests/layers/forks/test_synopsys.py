"""Add and Sum: plain loops, written from Synopsys' add_layer.cpp and sum_layer.cpp."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.proto import caffe_pb2

pytestmark = pytest.mark.usefixtures("device")

SHAPES = [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (3, 1)), ((4,), (2, 3, 1)), ((2, 1, 4), (1, 3, 1)), ((), (2, 3)), ((3, 2), ())]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_add_is_its_definition(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, axes = (normal(*a), normal(*b) + 2), max(len(a), len(b))
    padded = [(1,) * (axes - len(shape)) + shape for shape in (a, b)]
    shape = tuple(max(sizes) for sizes in zip(*padded, strict=True))
    y = np.zeros(shape)
    for at in product(*map(range, shape)):
        for array, own in zip(x, padded, strict=True):
            y[at] += array.reshape(own)[tuple(0 if size == 1 else i for i, size in zip(at, own, strict=True))]
    case = LayerCase('type: "Add"', *x)
    (found,) = case.forward()
    assert found.shape == shape
    np.testing.assert_array_equal(found, y)
    case.check_gradient()


@pytest.mark.parametrize(("a", "b"), [((2, 3), (2, 4)), ((2, 3), (2,)), ((0, 3), (2, 3))])
def test_add_of_shapes_that_do_not_fit(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    with pytest.raises(LayerError, match=r"from their last axes on, shapes \(\d, 3\) and .* must have equal axes, or 1 in one"):
        LayerCase('type: "Add"', np.ones(a), np.ones(b))


@pytest.mark.parametrize(
    ("words", "shape", "kept"),
    [
        ("axis: 1", (2, 4), (2, 1, 4)),
        ("axis: -1 axis: 0", (3,), (1, 3, 1)),
        ("axis: 0 axis: 1 axis: 2", (), (1, 1, 1)),
        ("", (), (1, 1, 1)),
    ],
)
@pytest.mark.parametrize("keeps", [False, True])
def test_sum_is_its_definition(words: str, shape: tuple[int, ...], kept: tuple[int, ...], keeps: bool) -> None:
    x, y = normal(2, 3, 4), np.zeros(kept)
    for at in product(range(2), range(3), range(4)):
        y[tuple(0 if size == 1 else i for i, size in zip(at, kept, strict=True))] += x[at]
    case = LayerCase(f'type: "Sum" sum_param {{ {words} keepdims: {str(keeps).lower()} }}', x)
    for _ in range(2):  # the original adds the second sum to the first
        (found,) = case.forward()
        assert found.shape == (kept if keeps else shape)
        np.testing.assert_allclose(found.reshape(kept), y, rtol=1e-12)
    case.check_gradient()


def test_sum_defaults_and_errors() -> None:
    assert not caffe_pb2.SumParameter().keepdims and not caffe_pb2.SumParameter().axis
    for words, message in (("axis: 3", r"axis 3"), ("axis: 1 axis: -2", r"an axis is given twice: \[1, -2\]")):
        with pytest.raises(LayerError, match=message):
            LayerCase(f'type: "Sum" sum_param {{ {words} }}', normal(2, 3, 4))
