"""Clip."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import check_by_hand, check_shapes

from minicaffe.blob import Blob
from minicaffe.errors import LayerError
from minicaffe.layers import create
from minicaffe.proto import caffe_pb2

pytestmark = pytest.mark.usefixtures("device")

TEXT = 'type: "Clip" clip_param { min: -1 max: 2 }'


def test_by_hand() -> None:
    check_by_hand(TEXT, [-3.0, -1.0, 0.5, 2.0, 4.0], [-1, -1, 0.5, 2, 2], [0, 1, 1, 1, 0])


@pytest.mark.parametrize("case", cases("Clip"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


def test_gradient() -> None:
    LayerCase(TEXT, [-3.0, -0.5, 0.5, 1.5, 4.0]).check_gradient()


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), max_size=5))
def test_twice_is_once(values: list[float]) -> None:
    (y,) = LayerCase(TEXT, values).forward()
    np.testing.assert_array_equal(LayerCase(TEXT, y).forward()[0], y)


def test_min_above_max() -> None:
    with pytest.raises(LayerError, match='Clip layer "layer": needs min <= max, got min 2 and max 1'):
        LayerCase('type: "Clip" clip_param { min: 2 max: 1 }', [1.0])


def test_one_end_missing() -> None:
    param = caffe_pb2.LayerParameter(name="layer", type="Clip")
    param.clip_param.min = 2
    with pytest.raises(LayerError, match='Clip layer "layer": clip_param needs both min and max'):
        create(param).connect([Blob((2,))], [Blob()])


def test_shapes() -> None:
    check_shapes(TEXT)
