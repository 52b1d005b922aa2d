"""How losses read their bottoms."""

import numpy as np
import pytest

from minicaffe.blob import Blob
from minicaffe.errors import LayerError
from minicaffe.layer import Layer
from minicaffe.layers.loss.loss import ClassAxis, check_same_shape, check_same_size, class_axis, read_labels
from minicaffe.proto import caffe_pb2

LAYER = Layer(caffe_pb2.LayerParameter(name="loss", type="Some"))


@pytest.mark.parametrize("axis, split", [(0, (1, 2, 60)), (1, (2, 3, 20)), (-1, (24, 5, 1))])
def test_class_axis(axis, split):
    assert class_axis(LAYER, Blob((2, 3, 4, 5)), axis, "") == ClassAxis(*split)


def test_read_labels():
    labels, kept = read_labels(LAYER, np.array([2.0, 9, 0, 1, 9, 1]).reshape(2, 1, 3), ClassAxis(2, 3, 3), 9)
    np.testing.assert_array_equal(labels, [[2, 0, 0], [1, 0, 1]])
    np.testing.assert_array_equal(kept, [[True, False, True], [True, False, True]])


def test_same_shape_forgives_trailing_axes_of_one():
    check_same_shape(LAYER, [Blob((5, 8)), Blob((5, 8, 1, 1))], 1)
    with pytest.raises(
        LayerError, match=r"Some layer \"loss\": bottoms 0 and 1 must have the same shape, got \(5, 1\) and \(1, 5\)"
    ):
        check_same_shape(LAYER, [Blob((5, 1)), Blob((1, 5))], 1)


def test_same_size_forgives_other_cuts():
    check_same_size(LAYER, [Blob((5, 8)), Blob((5, 2, 4))], 1)
    with pytest.raises(LayerError, match=r"must have as many values, got 40 of shape \(5, 8\) and 45 of shape \(5, 9\)"):
        check_same_size(LAYER, [Blob((5, 8)), Blob((5, 9))], 1)
