"""The runs of a convolution's taps, on maps small enough to write down."""

from __future__ import annotations

import numpy as np

from minicaffe.layers.conv.columns import runs_of
from minicaffe.layers.conv.window import Window


def test_the_example_of_the_module() -> None:
    """Stride 2, padded: tap (0, 2) of two rows of three windows."""
    runs = runs_of(Window((1, 3), (2, 2), (0, 0), (1, 1)), (2, 3))
    x = np.arange(1.0, 22).reshape(1, 1, 3, 7)  # no padding: rows 0 and 2, columns 0, 2, 4, 6 are the first phase
    phases = np.full((1, 1, len(runs.phases), *runs.size), np.nan)
    runs.lay_out(x, 0, phases)
    assert runs.phases == ((0, 0), (0, 1))
    start = runs.starts[2]
    run = phases.reshape(-1)[start : start + runs.length]
    np.testing.assert_array_equal(run, [3, 5, 7, 15, 17, 19, 21])  # 15 is the gap


def test_the_border_is_zeros_and_comes_back_as_nothing() -> None:
    runs = runs_of(Window((2, 2), (1, 1), (1, 2), (1, 1)), (4, 6))
    x = np.arange(1.0, 10).reshape(1, 1, 3, 3)
    phases = np.full((1, 1, 1, *runs.size), np.nan)
    runs.lay_out(x, 0, phases)
    np.testing.assert_array_equal(phases[0, 0, 0], np.pad(x[0, 0], ((1, 1), (2, 2))))
    back = np.zeros_like(x)
    runs.add_phases(np.ones_like(phases), 0, back)
    np.testing.assert_array_equal(back, np.ones_like(x))


def test_rows_from_a_later_window_on() -> None:
    runs = runs_of(Window((3, 1), (2, 1), (1, 0), (1, 1)), (1, 4))
    x = np.arange(1.0, 21).reshape(1, 1, 5, 4)
    phases = np.full((1, 1, len(runs.phases), *runs.size), np.nan)
    runs.lay_out(x, 1, phases)  # the window of rows 1, 2 and 3
    seen = [phases.reshape(-1)[start : start + runs.length] for start in runs.starts]
    np.testing.assert_array_equal(seen, x[0, 0, 1:4])
