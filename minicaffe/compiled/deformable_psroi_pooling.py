"""DeformablePSROIPooling by compiled loops: channels split across all threads."""

from __future__ import annotations

from functools import partial

import numpy as np

from minicaffe.blob import Array
from minicaffe.compiled.jit import Loop, loop
from minicaffe.kernels import provides
from minicaffe.layers.roi import deformable_psroi_pooling
from minicaffe.layers.roi.deformable_psroi_pooling import MovedPlan
from minicaffe.layers.roi.roi_geometry import Ints
from minicaffe.threads import parts, run

Taps = tuple[Ints, Array]
"""The pixels that the bins of K classes read along an axis, -1 for none, and their weights: (R, K, G, G, T). Pixels of rows
are counted in whole rows of the map."""


@loop(
    "Array(T, 3, 'C', True), Tuple((int64[:,:,:,:,::1], T[:,:,:,:,::1])), Tuple((int64[:,:,:,:,::1], T[:,:,:,:,::1])),"
    "int64[::1], UniTuple(int64, 2), T[:,:,:,::1]"
)
def moved_means(x: Array, rows: Taps, columns: Taps, images: Ints, part: tuple[int, int], y: Array) -> None:
    """Compute y (R, D, G, G) from x (N, D * G * G, H * W), for a part of x's channels: the first one, one past the last.

    images (R,): the image of each roi.
    """
    (from_rows, row_weights), (from_columns, column_weights) = rows, columns
    dim, group, classes = y.shape[1], y.shape[2], from_rows.shape[1]
    for channel in range(part[0], part[1]):
        d, gh, gw = channel // (group * group), channel // group % group, channel % group
        k = d * classes // dim
        for r in range(len(y)):
            plane = x[images[r], channel]
            row, row_weight = from_rows[r, k, gh, gw], row_weights[r, k, gh, gw]
            column, column_weight = from_columns[r, k, gh, gw], column_weights[r, k, gh, gw]
            total = y.dtype.type(0)
            for a in range(len(row)):
                of_row = y.dtype.type(0)
                if row[a] >= 0:
                    for b in range(len(column)):
                        if column[b] >= 0:
                            of_row += plane[np.uintp(row[a] + column[b])] * column_weight[b]
                    total += of_row * row_weight[a]
            y[r, d, gh, gw] = total


@loop(
    "Array(T, 4, 'C', True), Tuple((int64[:,:,:,:,::1], T[:,:,:,:,::1])), Tuple((int64[:,:,:,:,::1], T[:,:,:,:,::1])),"
    "int64[::1], UniTuple(int64, 2), T[:,:,::1]"
)
def moved_means_backward(dy: Array, rows: Taps, columns: Taps, images: Ints, part: tuple[int, int], dx: Array) -> None:
    """Compute dx (N, D * G * G, H * W), for a part of its channels, from dy (R, D, G, G)."""
    (from_rows, row_weights), (from_columns, column_weights) = rows, columns
    dim, group, classes = dy.shape[1], dy.shape[2], from_rows.shape[1]
    for channel in range(part[0], part[1]):
        d, gh, gw = channel // (group * group), channel // group % group, channel % group
        k = d * classes // dim
        dx[:, channel] = 0
        for r in range(len(dy)):
            plane = dx[images[r], channel]
            row, row_weight = from_rows[r, k, gh, gw], row_weights[r, k, gh, gw]
            column, column_weight = from_columns[r, k, gh, gw], column_weights[r, k, gh, gw]
            for a in range(len(row)):
                if row[a] >= 0:
                    of_row = dy[r, d, gh, gw] * row_weight[a]
                    for b in range(len(column)):
                        if column[b] >= 0:
                            plane[np.uintp(row[a] + column[b])] += of_row * column_weight[b]


@provides(deformable_psroi_pooling.pool_moved, loops=(moved_means,))
def pool_moved(x: Array, plan: MovedPlan, y: Array, rows: str, columns: str) -> None:
    """Split the channels across the threads."""
    maps = x.reshape(*x.shape[:2], plan.size[0] * plan.size[1])
    _run_loop(moved_means, maps, plan, y, (rows, columns))


@provides(deformable_psroi_pooling.add_moved, loops=(moved_means_backward,))
def add_moved(dy: Array, plan: MovedPlan, dx: Array) -> None:
    """Split the channels across the threads."""
    _run_loop(moved_means_backward, dy, plan, dx.reshape(*dx.shape[:2], plan.size[0] * plan.size[1]))


def _run_loop(
    step: Loop[...], given: Array, plan: MovedPlan, out: Array, weights: tuple[str, str] = ("share", "share")
) -> None:
    """Run moved_means on x (N, C, H * W), or its transpose on dy (R, D, G, G), for all channels, on all threads.

    weights: the names of the rows' and the columns' weights.
    """
    (h, w, per_bin), (height, width) = plan.places, plan.size
    down, across = deformable_psroi_pooling.axis_taps(h, height), deformable_psroi_pooling.axis_taps(w, width)
    found = (
        *(np.where(down.pixel < 0, -1, down.pixel * width), getattr(down, weights[0])),
        *(across.pixel, getattr(across, weights[1]) / per_bin[..., None]),
    )
    rows, row_weights, columns, column_weights = (np.ascontiguousarray(array) for array in found)
    images, given = plan.images.astype(np.int64), np.ascontiguousarray(given).view()
    # read-only, as blobs return what is read: Numba would compile another loop for writable arrays
    given.flags.writeable = False
    run(
        partial(step, given, (rows, row_weights), (columns, column_weights), images, (part.start, part.stop), out)
        for part in parts(max(given.shape[1], out.shape[1]), each=2)
    )
