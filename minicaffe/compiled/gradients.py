"""The sums of windows' columns at the pixels of maps, by a loop: NumPy's bincount would hold the GIL."""

from __future__ import annotations

from minicaffe.blob import Array
from minicaffe.compiled.jit import loop
from minicaffe.kernels import provides
from minicaffe.layers.conv import gradients
from minicaffe.layers.conv.gradients import Indices


@loop("T[:,:,::1], int64[::1], UniTuple(int64, 2), T[:,::1]")
def add_columns(columns: Array, pixels: Indices, windows: tuple[int, int], maps: Array) -> None:
    """Add columns (C, taps, windows) to maps (C, pixels).

    windows: the first column and one past the last; pixels: those of the columns (taps * columns,), as in Sight.
    """
    for c in range(len(columns)):
        i = 0
        for tap in range(columns.shape[1]):
            for window in range(windows[0], windows[1]):
                if pixels[i] < maps.shape[1]:
                    maps[c, pixels[i]] += columns[c, tap, window]
                i += 1


@provides(gradients.add_columns, loops=(add_columns,))
def add_columns_by_loops(columns: Array, pixels: Indices, windows: slice, maps: Array) -> None:
    add_columns(columns, pixels, (windows.start, windows.stop), maps)
