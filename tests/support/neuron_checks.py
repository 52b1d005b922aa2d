"""What every layer that works element by element must show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from layer_case import LayerCase


def check_by_hand(text: str, x: Sequence[float], y: Sequence[float], slope: Sequence[float], rtol: float = 1e-12) -> None:
    """y from x and dx = 8 * slope, in place and apart, in both types; apart, x is untouched."""
    for dtype, allowed in ((np.float32, 1e-5), (np.float64, rtol)):
        for in_place in (False, True):
            case = LayerCase(text, x, dtype=dtype, in_place=in_place)
            (top,) = case.forward()
            assert top.dtype == dtype
            np.testing.assert_allclose(top, y, rtol=allowed, atol=allowed)
            if not in_place:
                np.testing.assert_array_equal(case.bottom[0].data, np.asarray(x, dtype))
            np.testing.assert_allclose(case.backward(np.full(len(x), 8.0))[0], 8 * np.array(slope), rtol=allowed, atol=allowed)


def check_shapes(text: str) -> None:
    """Check a second reshape, 0 rows, and that no gradient is computed unless requested."""
    case = LayerCase(text, np.ones((2, 3)))
    for shape in ((5, 3, 4), (0, 3, 7)):
        case.bottom[0].reshape(*shape)
        case.bottom[0].data[...] = 0.5
        assert case.forward()[0].shape == shape
        assert case.backward(np.ones(shape))[0].shape == shape
    case = LayerCase(text, np.ones((2, 3)))
    case.forward()
    case.bottom[0].diff[...] = 7
    assert (case.backward(np.ones((2, 3)), propagate_down=[False])[0] == 7).all()


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)
