"""The depthwise gradient of the data, in blocks of any size."""

from __future__ import annotations

import numpy as np
import pytest

from minicaffe.layers import depthwise
from minicaffe.layers.convolve import convolve
from minicaffe.layers.window import Window


@pytest.mark.parametrize("block", [1, 500, 1 << 20])
@pytest.mark.parametrize("stride", [1, 2])
def test_is_the_transpose_of_the_convolution(stride: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of dy * convolve(x) is the sum of dx * x."""
    monkeypatch.setattr(depthwise, "BLOCK_BYTES", block)
    window = Window(kernel=(3, 2), stride=(stride, 1), pad=(1, 0), dilation=(1, 2))
    random = np.random.default_rng(block)
    x, weight = random.normal(size=(2, 4, 7, 6)), random.normal(size=(4, 1, 3, 2))
    y = np.empty((2, 4, *window.output((7, 6))))
    convolve(x, weight, window, 4, y)
    dy, dx = random.normal(size=y.shape), np.full(x.shape, np.nan)
    depthwise.depthwise_data_gradient(dy, weight, window, dx)
    np.testing.assert_allclose((dx * x).sum(), (dy * y).sum())
