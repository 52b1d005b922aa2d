"""The samples of a deformable convolution as plain loops: where they are, its columns, and their gradients.

    columns[window, tap, c] = x[c] at (window * stride - pad + tap * dilation + offset[g, tap, window])

x between pixels is bilinear, 0 outside [0, H) x [0, W), and past the centre of the last pixel it is that pixel; g is c's
deformable group. There is a sample for each window, tap and group, in this order. maps (H * W * groups, C / groups) is x.
A sample is made of four rows of maps. read (samples, 4): the rows at low low, low high, high low and high high; the first is -1
off the map. share (samples, 2): the shares of the high row of the map and of its high column.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.compiled.jit import loop
from minicaffe.kernels import provides
from minicaffe.layers.conv.deformed import samples_of
from minicaffe.layers.conv.window import Window
from minicaffe.threads import Scratch, get_num_threads, parts, run

Grid = tuple[int, int, int, int, int, int, int, int, int, int]
"""H, W, windows across, the kernel's columns, and stride, pad and dilation of rows and of columns."""

Part = tuple[int, int]
"""The first one, and one past the last."""

Read = NDArray[np.int64]


def grid_of(window: Window, size: tuple[int, int], across: int) -> Grid:
    stride, pad, dilation = window.stride, window.pad, window.dilation
    return size[0], size[1], across, window.kernel[1], stride[0], stride[1], pad[0], pad[1], dilation[0], dilation[1]


@loop("T[:,:,::1], UniTuple(int64, 10), UniTuple(int64, 2), int64[:,::1], T[:,::1]")
def find_samples(offset: Array, grid: Grid, part: Part, read: Read, share: Array) -> None:
    """Compute read and share for a part of the windows. offset (groups, taps * 2, windows): a tap's move down, then right."""
    height, width, across, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w = grid
    groups, taps = len(offset), offset.shape[1] // 2
    number = offset.dtype.type
    for window in range(part[0], part[1]):
        corner_h, corner_w = window // across * stride_h - pad_h, window % across * stride_w - pad_w
        for tap in range(taps):
            step_h, step_w = tap // kernel_w * dilation_h, tap % kernel_w * dilation_w
            for g in range(groups):
                s = (window * taps + tap) * groups + g
                move_h, move_w = offset[g, 2 * tap, window], offset[g, 2 * tap + 1, window]
                h, w = number(corner_h + step_h) + move_h, number(corner_w + step_w) + move_w
                if not (0 <= h < height and 0 <= w < width):
                    read[s, 0] = -1
                    continue
                # Counted from the window's corner, as in the fork's fraction, to round less.
                h, w = number(step_h) + move_h, number(step_w) + move_w
                top = min(max(np.int64(np.floor(h)) + corner_h, 0), height - 1)
                left = min(max(np.int64(np.floor(w)) + corner_w, 0), width - 1)
                bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
                share[s, 0] = h - np.floor(h) if top < bottom else number(0)
                share[s, 1] = w - np.floor(w) if left < right else number(0)
                read[s, 0], read[s, 1] = (top * width + left) * groups + g, (top * width + right) * groups + g
                read[s, 2], read[s, 3] = (bottom * width + left) * groups + g, (bottom * width + right) * groups + g


@loop("T[:,::1], int64[:,::1], T[:,::1], T[:,::1]")
def sample_rows(maps: Array, read: Read, share: Array, rows: Array) -> None:
    """Compute the samples, rows (samples, C / groups)."""
    one = maps.dtype.type(1)
    for s in range(len(rows)):
        out = rows[s]
        if read[s, 0] < 0:
            out[:] = 0
            continue
        low_low, low_high, high_low, high_high = maps[read[s, 0]], maps[read[s, 1]], maps[read[s, 2]], maps[read[s, 3]]
        of_row, of_column = share[s, 0], share[s, 1]
        a, b = (one - of_row) * (one - of_column), (one - of_row) * of_column
        c, d = of_row * (one - of_column), of_row * of_column
        for k in range(len(out)):
            out[k] = low_low[k] * a + low_high[k] * b + high_low[k] * c + high_high[k] * d


@loop("T[:,::1], int64[:,::1], T[:,::1], T[:,::1], T[:,::1]")
def sample_slopes(maps: Array, read: Read, share: Array, rows: Array, slopes: Array) -> None:
    """Compute slopes (samples, 2): the gradients in a sample's move down and to the right. rows: the samples' gradient."""
    one = maps.dtype.type(1)
    for s in range(len(rows)):
        down = right = one - one
        if read[s, 0] >= 0:
            low_low, low_high, high_low, high_high = maps[read[s, 0]], maps[read[s, 1]], maps[read[s, 2]], maps[read[s, 3]]
            of_row, of_column, given = share[s, 0], share[s, 1], rows[s]
            for k in range(len(given)):
                at_low, at_high = high_low[k] - low_low[k], high_high[k] - low_high[k]
                down += given[k] * (at_low * (one - of_column) + at_high * of_column)
                at_low, at_high = low_high[k] - low_low[k], high_high[k] - high_low[k]
                right += given[k] * (at_low * (one - of_row) + at_high * of_row)
        slopes[s, 0], slopes[s, 1] = down, right


@loop("T[:,::1], int64[:,::1], T[:,::1], UniTuple(int64, 4), T[:,::1]")
def add_samples(rows: Array, read: Read, share: Array, part: tuple[int, int, int, int], dmaps: Array) -> None:
    """Add the samples' gradient, rows (samples, C / groups), times the shares to dmaps, which has maps' shape.

    part: a group, the number of groups, and the first and end of the group's channels to add.
    """
    group, groups, first, end = part
    one = rows.dtype.type(1)
    for s in range(group, len(rows), groups):
        if read[s, 0] >= 0:
            given = rows[s, first:end]
            for k in range(4):
                of_row = share[s, 0] if k >= 2 else one - share[s, 0]
                of_column = share[s, 1] if k % 2 else one - share[s, 1]
                to, weight = dmaps[read[s, k], first:end], of_row * of_column
                for j in range(len(given)):
                    to[j] += given[j] * weight


class LoopSamples(NamedTuple):
    """The samples of one image's columns, with the methods of deformed.Samples. each: samples of a window."""

    maps: Array
    read: Read
    share: Array
    each: int
    groups: int

    def columns(self, windows: slice, columns: Array, scratch: Scratch) -> None:
        """Fill columns (windows, taps, C) for these windows."""
        part = slice(windows.start * self.each, windows.stop * self.each)
        sample_rows(self.maps, self.read[part], self.share[part], columns.reshape(-1, self.maps.shape[1]))

    def slopes(self, windows: slice, columns: Array, scratch: Scratch) -> Array:
        """Return the gradient in these windows' offsets (2, windows, taps, groups) from that in columns (windows, taps, C)."""
        part = slice(windows.start * self.each, windows.stop * self.each)
        slopes = scratch("slopes", part.stop - part.start, 2)
        sample_slopes(self.maps, self.read[part], self.share[part], columns.reshape(-1, self.maps.shape[1]), slopes)
        gradient: Array = slopes.reshape(len(columns), -1, self.groups, 2).transpose(3, 0, 1, 2)
        return gradient

    def data_gradient(self, columns: Array, dx: Array, scratch: Scratch) -> None:
        """Compute dx (C, H, W) from the columns' gradient (windows, taps, C). It is overwritten.

        Each thread adds to its own channels.
        """
        dmaps = scratch("maps", *self.maps.shape)
        dmaps[...] = 0
        rows = columns.reshape(-1, self.maps.shape[1])
        pieces = parts(rows.shape[1], least=max(1, self.groups * rows.shape[1] // get_num_threads()))
        run(
            partial(add_samples, rows, self.read, self.share, (group, self.groups, some.start, some.stop), dmaps)
            for group in range(self.groups)
            for some in pieces
        )
        dx.reshape(len(dx), -1)[...] = dmaps.reshape(-1, len(dx)).T


@provides(samples_of, loops=(find_samples, sample_rows), backward=(sample_slopes, add_samples))
def samples_by_loops(x: Array, offset: Array, window: Window) -> LoopSamples:
    taps, windows = math.prod(window.kernel), math.prod(offset.shape[1:])
    groups = len(offset) // (2 * taps)
    maps = np.ascontiguousarray(x.reshape(len(x), -1).T).reshape(-1, len(x) // groups)
    read, share = np.empty((windows * taps * groups, 4), np.int64), np.empty((windows * taps * groups, 2), x.dtype)
    moves, grid = offset.reshape(groups, 2 * taps, windows), grid_of(window, x.shape[1:], offset.shape[2])
    todo = parts(windows, least=256)
    run(partial(find_samples, moves, grid, (part.start, part.stop), read, share) for part in todo)
    return LoopSamples(maps, read, share, taps * groups, groups)
