"""Scatter, which in one process is Gather: see test_gather.py."""

from __future__ import annotations

import numpy as np
import pytest
from layer_case import LayerCase

from minicaffe.layers.shape.items import Gather

pytestmark = pytest.mark.usefixtures("device")


def test_the_tops_are_the_bottoms() -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    case = LayerCase('type: "Scatter"', x)
    np.testing.assert_array_equal(case.forward()[0], x)
    np.testing.assert_array_equal(case.backward(x + 5)[0], x + 5)
    assert isinstance(case.layer, Gather) and case.layer.type == "Scatter"
    case.check_gradient()
