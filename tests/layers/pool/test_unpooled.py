"""Numbers put into maps as the definition says, and as NumPy does it."""

from __future__ import annotations

import numpy as np
import pytest
from layer_case import LayerCase

from minicaffe import kernels
from minicaffe.layers.pool.unpooled import put, put_by_definition, put_gradient, put_gradient_by_definition


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("one_mask", [False, True])
def test_numpy_does_what_the_definition_says(dtype: type, one_mask: bool) -> None:
    """More numbers than pixels: some replace others."""
    random = np.random.default_rng(3)
    x, dy = (random.standard_normal(shape).astype(dtype) for shape in ((2, 3, 4, 5), (2, 3, 3, 6)))
    mask = random.integers(0, 18, (4, 5) if one_mask else x.shape).astype(dtype)
    layer = LayerCase('type: "Upsample"', x).layer  # names itself in errors
    y, y_too, dx, dx_too = np.empty_like(dy), np.empty((6, 18), dtype), np.empty_like(x), np.empty((6, 20), dtype)
    with kernels.using("numpy"):
        put(layer, x, mask, y)
        put_gradient(layer, dy, mask, dx)
        rows = mask.reshape(1 if one_mask else 6, 20)
        assert put_by_definition(x.reshape(6, 20), rows, y_too)
        assert put_gradient_by_definition(dy.reshape(6, 18), rows, dx_too, np.empty(18, np.int32))
        for wrong in (-1, 18, 0.5, np.nan, np.inf):
            rows[-1, -1] = wrong
            assert not put_by_definition(x.reshape(6, 20), rows, np.empty((6, 18), dtype))
            assert not put_gradient_by_definition(dy.reshape(6, 18), rows, np.empty((6, 20), dtype), np.empty(18, np.int32))
    np.testing.assert_array_equal(y_too, y.reshape(6, 18))
    np.testing.assert_array_equal(dx_too, dx.reshape(6, 20))
