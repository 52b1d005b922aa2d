"""The products of a convolution: the same whatever the blocks."""

from __future__ import annotations

import numpy as np
import pytest

from minicaffe.layers import convolve as module
from minicaffe.layers.convolve import add_weight_gradient, convolve, data_gradient
from minicaffe.layers.window import Window

THREE = Window((3, 2), (2, 1), (1, 0), (1, 2))
ONE = Window((1, 1), (1, 1), (0, 0), (1, 1))


@pytest.mark.parametrize("window", [THREE, ONE])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("block_bytes", [1, 1000, 5000])
def test_blocks_change_nothing(window: Window, group: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of one image at a time, some rows, some images, or everything at once."""
    random = np.random.default_rng(3)
    x, weight = random.normal(size=(5, 4, 7, 6)), random.normal(size=(6, 4 // group, *window.kernel))
    dy = random.normal(size=(5, 6, *window.output((7, 6))))

    def products() -> list[np.ndarray]:
        y, dx, dweight = np.full_like(dy, np.nan), np.full_like(x, np.nan), np.ones_like(weight)
        convolve(x, weight, window, group, y)
        data_gradient(dy, weight, window, group, dx)
        add_weight_gradient(x, dy, window, group, dweight)
        return [y, dx, dweight]

    whole = products()
    monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    for expected, actual in zip(whole, products(), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-12)


def test_columns_stay_within_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    columns = module._columns

    def counted(*args: object) -> np.ndarray:
        made = columns(*args)
        sizes.append(made.nbytes)
        return made

    monkeypatch.setattr(module, "_columns", counted)
    x, y = np.zeros((3, 8, 200, 100), np.float32), np.zeros((3, 5, 198, 98), np.float32)
    convolve(x, np.zeros((5, 8, 3, 3), np.float32), Window((3, 3), (1, 1), (0, 0), (1, 1)), 1, y)
    assert len(sizes) > 3
    assert max(sizes) <= module.BLOCK_BYTES
