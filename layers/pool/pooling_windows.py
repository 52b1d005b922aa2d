"""Caffe's pooling windows on one axis, and reductions over windows, axis by axis.

    pooled = ceil((size + pad + end - kernel) / stride) + 1, less 1 where either axis is padded and the last window would start
             past size + pad - 1
    window i covers [i * stride - pad, min(i * stride - pad + kernel, size + end)), clipped to [0, size)
end: the padding after the map, which is pad but for pad_type and pad_l, pad_r, pad_t and pad_b.
Source: Caffe's pooling_layer.cpp, and Synopsys'.
A window may be empty (neither axis padded, stride > kernel, last window past the map).

Kernel, stride and padding of a Pooling layer, read from its pooling_param and checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import EllipsisType

import numpy as np
from google.protobuf.message import Message
from numpy.typing import DTypeLike, NDArray

from minicaffe.blob import Array
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2
from minicaffe.threads import Scratch

Index = tuple[EllipsisType, slice, slice]
"""An index of the last two axes."""

Pair = tuple[int, int]
"""A size on both axes, or of the padding before and after the map."""

LOWEST = float(-np.finfo(np.float32).max)
"""The maximum of an empty window. A pixel that is not above it (NaN, -inf) never wins."""

BLOCK_BYTES = 1 << 21
"""Approximate bytes of maps pooled at a time, so that temporaries stay in cache."""

LINE = 16
"""Numbers of a cache line. Passes over rows that begin with a line are faster."""


@dataclass(frozen=True)
class PoolAxis:
    """The windows on one axis of `size` pixels.

    floor: their number is rounded down, not up; clip: a window that would start past size + pad - 1 is left out;
    counts_padding: an average divides by a length that includes padding; after: the padding after the map, -1 for pad.
    """

    size: int
    kernel: int
    stride: int
    pad: int
    floor: bool = False
    clip: bool = False
    counts_padding: bool = True
    after: int = -1

    @property
    def end(self) -> int:
        """Return the padding after the map."""
        return self.pad if self.after < 0 else self.after

    @property
    def pooled(self) -> int:
        """Return the number of windows; below 1 if the map is too small."""
        room = self.size + self.pad + self.end - self.kernel
        pooled = (room // self.stride if self.floor else -(-room // self.stride)) + 1
        # As in Caffe, the last window must start on the map, not in the padding after it.
        return pooled - (self.clip and (pooled - 1) * self.stride >= self.size + self.pad)

    def taps(self) -> Iterator[tuple[slice, slice]]:
        """Yield for each tap of the kernel the windows in which it lies on the map, and its pixels."""
        for tap in range(min(self.kernel, self.size + self.pad)):  # later taps lie past the map in all windows
            offset = tap - self.pad
            first = max(0, -(offset // self.stride))
            # The last window whose pixel is below size.
            last = min(self.pooled - 1, (self.size - 1 - offset) // self.stride)
            if first <= last:
                pixels = slice(first * self.stride + offset, last * self.stride + offset + 1, self.stride)
                yield slice(first, last + 1), pixels

    def offsets(self) -> NDArray[np.intp]:
        """Return each tap's pixel in the window that starts at -pad, in the order of taps()."""
        # As in taps(), a tap off the map in all windows has no entry.
        return np.array([pixels.start - windows.start * self.stride for windows, pixels in self.taps()], np.intp)

    @property
    def reach(self) -> int:
        """Return the end of the last window, counted from the first one's start, at most the map's end."""
        return (self.pooled - 1) * self.stride + min(self.kernel, self.size + self.pad)

    @property
    def one(self) -> bool:
        """Return whether there is one window, with all pixels in it."""
        return self.pooled == 1 and self.kernel - self.pad >= self.size

    @property
    def overlap(self) -> bool:
        """Return whether a pixel may lie in two windows."""
        return self.stride < self.kernel

    def spans(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return each window's first pixel and one past its last (pooled,), before they are clipped to [0, size)."""
        start = np.arange(self.pooled) * self.stride - self.pad
        return start, np.minimum(start + self.kernel, self.size + self.end)

    def lengths(self, dtype: DTypeLike) -> Array:
        """Return each window's length for the average: (pooled,); 0 or less if it is empty."""
        start, end = self.spans()
        if not self.counts_padding:
            start, end = np.maximum(start, 0), np.minimum(end, self.size)
        return (end - start).astype(dtype)


def pool_axes(
    spatial: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    pads: Sequence[Pair],
    floor: bool,
    counts_padding: bool = True,
) -> tuple[PoolAxis, PoolAxis]:
    """Return the windows of a map on its rows and on its columns. pads: before and after the map, on each axis.

    Padding on either axis clips both, as in Caffe.
    """
    clip = any(map(any, pads))
    rows, columns = (
        # Cap the stride, to keep integers small: with a stride past the padded map, the second window is empty anyway.
        PoolAxis(size, k, min(s, max(size + sum(pad), k) + 1), pad[0], floor, clip, counts_padding, pad[1])
        for size, k, s, pad in zip(spatial, kernel, stride, pads, strict=True)
    )
    return rows, columns


def reduce_windows(
    operation: np.ufunc,
    x: Array,
    rows: PoolAxis,
    columns: PoolAxis,
    start: float,
    *,
    out: Array | None = None,
    scratch: Scratch | None = None,
) -> Array:
    """Reduce every window of x (..., H, W) with operation, from start: (..., PH, PW), in out if given.

    Rows are reduced first, in whole passes. Columns follow; if windows are close, in passes over every pixel's window, of which
    every stride-th is taken. NumPy processes four adjacent pixels in the time of one strided pixel.
    """
    scratch = scratch or Scratch(x.dtype)
    line = LINE if columns.size >= 8 * LINE else 1  # alignment of the rows, and of the map in them after its padding
    left = -(-columns.pad // line) * line
    end = left + columns.size
    width = -(-max(end, left - columns.pad + columns.reach) // line) * line
    by_row = scratch("by row", *x.shape[:-2], rows.pooled, width)
    by_row[..., :left] = by_row[..., end:] = start  # the padding, and the rest of the last line
    reduce_rows(operation, x, rows, start, by_row[..., left:end])
    y = np.empty((*by_row.shape[:-1], columns.pooled), x.dtype) if out is None else out
    first, taps = left - columns.pad, min(columns.kernel, columns.size + columns.pad)
    last = first + (columns.pooled - 1) * columns.stride + 1
    if width > 4 * columns.pooled:  # with few windows, picking each tap's pixels is faster than passes over all
        y[...] = by_row[..., first : last : columns.stride]
        for tap in range(1, taps):
            # by_row includes the padding, so no tap leaves it.
            operation(y, by_row[..., first + tap : last + tap : columns.stride], out=y)
    else:
        y[...] = _reduce_runs(operation, by_row, taps, scratch)[..., first : last : columns.stride]
    empty = scratch("empty", *y.shape)
    empty[...] = start  # an array: fmax of an array and a number is slow
    return operation(y, empty, out=y)  # type: ignore[no-any-return]


def _reduce_runs(operation: np.ufunc, x: Array, taps: int, scratch: Scratch) -> Array:
    """Reduce each number of x and the taps - 1 after it, in x's shape. Results that cross a row's end are invalid."""
    if taps == 1:
        return x
    windows, flat = scratch("windows", *x.shape), x.reshape(-1)
    length = max(flat.size - taps + 1, 0)
    total = windows.reshape(-1)[:length]
    with np.errstate(over="ignore", invalid="ignore"):  # windows across the end of a row may overflow; they are never read
        operation(flat[:length], flat[1 : length + 1], out=total)
        for tap in range(2, taps):
            operation(total, flat[tap : length + tap], out=total)
    return windows


def reduce_rows(operation: np.ufunc, x: Array, rows: PoolAxis, start: float, y: Array) -> None:
    """Compute y (..., PH, W): each window's rows of x (..., H, W) reduced with operation; start for empty windows."""
    (windows, pixels), *taps = rows.taps()
    y[..., : windows.start, :] = y[..., windows.stop :, :] = start
    if taps and taps[0][0] == windows:  # the first pass combines two taps, which saves a copy
        operation(x[..., pixels, :], x[..., taps.pop(0)[1], :], out=y[..., windows, :])
    else:
        y[..., windows, :] = x[..., pixels, :]
    for windows, pixels in taps:
        part = y[..., windows, :]
        operation(part, x[..., pixels, :], out=part)


def windows_backward(dy: Array, rows: PoolAxis, columns: PoolAxis, dx: Array) -> None:
    """Compute dx (..., H, W): for each pixel the sum of its windows' dy (..., PH, PW). dx is overwritten."""
    by_row = np.zeros((*dy.shape[:-1], columns.size), dy.dtype)  # columns first, so that the passes over rows add whole rows
    for windows, pixels in columns.taps():
        by_row[..., pixels] += dy[..., windows]
    dx[...] = 0
    for windows, pixels in rows.taps():
        dx[..., pixels, :] += by_row[..., windows, :]


def window_taps(rows: PoolAxis, columns: PoolAxis) -> Iterator[tuple[Index, Index]]:
    """Yield for each tap, in row-major order, the windows (PH, PW) in which it lies on the map, and its pixels, as indices."""
    for row_windows, row_pixels in rows.taps():
        for column_windows, column_pixels in columns.taps():
            yield (..., row_windows, column_windows), (..., row_pixels, column_pixels)


def plane_blocks(x: Array, part: slice | None = None) -> Iterator[slice]:
    """Yield the maps of x (N * C, H, W), or a part of them, in blocks of about BLOCK_BYTES, at least one map each."""
    start, stop = (0, len(x)) if part is None else (part.start, part.stop)
    size = maps_at_once(x[:1].nbytes)
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))


def maps_at_once(size: int) -> int:
    """Return how many maps of `size` bytes make a block."""
    return max(1, BLOCK_BYTES // max(1, size))


def read_sizes(layer: Layer, param: caffe_pb2.PoolingParameter) -> tuple[Pair, Pair, Pair]:
    """Return kernel ((0, 0): the whole map), stride and pad.

    Raises LayerError for sizes given twice, for one axis only, or out of range.
    """
    kernel = (0, 0) if param.global_pooling else _pair(layer, param, "kernel_size", "kernel_h", "kernel_w")
    stride = _pair(layer, param, "stride", "stride_h", "stride_w")
    pad = _pair(layer, param, "pad", "pad_h", "pad_w")
    if param.global_pooling:
        if any(param.HasField(f) for f in ("kernel_size", "kernel_h", "kernel_w")):
            raise layer.error("global_pooling takes the whole map: no kernel size can be given", "pooling_param.global_pooling")
        if stride != (1, 1) or pad != (0, 0):
            raise layer.error(
                f"global_pooling needs stride 1 and pad 0, got stride {stride} and pad {pad}", "pooling_param.global_pooling"
            )
    elif min(kernel) < 1:
        raise layer.error(f"the kernel must be > 0 on both axes, got {kernel}", "pooling_param.kernel_size")
    if min(stride) < 1:
        raise layer.error(f"the stride must be > 0 on both axes, got {stride}", "pooling_param.stride")
    if any(pad) and param.pool == caffe_pb2.PoolingParameter.STOCHASTIC:
        raise layer.error("padding is for MAX and AVE pooling, not for STOCHASTIC", "pooling_param.pad")
    if any(pad) and any(p >= k for p, k in zip(pad, kernel)):  # otherwise a window could lie in the padding alone
        raise layer.error(f"pad {pad} must be smaller than the kernel {kernel}", "pooling_param.pad")
    return kernel, stride, pad


def read_pads(layer: Layer, param: caffe_pb2.PoolingParameter, pad: Pair) -> tuple[Pair, Pair] | None:
    """Return the padding before and after the map, on each axis; None for pad_type: 1, with which it depends on the size.

    pad: that of read_sizes. Raises LayerError for paddings given twice, and for an unknown pad_type.
    """
    sides = [f for f in ("pad_l", "pad_r", "pad_t", "pad_b") if getattr(param, f)]
    other = [f for f in ("pad_type", "pad", "pad_h", "pad_w") if param.HasField(f)]
    if param.pad_type > 1:
        raise layer.error(f"pad_type must be 0, or 1 for TensorFlow's SAME, got {param.pad_type}", "pooling_param.pad_type")
    if (sides and other) or (other[:1] == ["pad_type"] and len(other) > 1):
        given = " and ".join([*sides[:1], *other][:2])
        raise layer.error(f"{given} are both given: give one kind of padding", f"pooling_param.{other[0]}")
    if (sides or param.pad_type) and param.global_pooling:
        field = sides[0] if sides else "pad_type"
        raise layer.error(f"global_pooling needs pad 0, got {field}", f"pooling_param.{field}")
    if (sides or param.pad_type) and param.pool == caffe_pb2.PoolingParameter.STOCHASTIC:
        field = sides[0] if sides else "pad_type"
        raise layer.error("padding is for MAX and AVE pooling, not for STOCHASTIC", f"pooling_param.{field}")
    if param.pad_type:
        return None
    for field in sides:  # otherwise a window could lie in the padding alone
        kernel = param.kernel_size or (param.kernel_w if field in ("pad_l", "pad_r") else param.kernel_h)
        if getattr(param, field) >= kernel:
            raise layer.error(
                f"{field} {getattr(param, field)} must be smaller than the kernel's {kernel}", f"pooling_param.{field}"
            )
    return ((param.pad_t, param.pad_b), (param.pad_l, param.pad_r)) if sides else ((pad[0],) * 2, (pad[1],) * 2)


def same_pads(size: int, kernel: int, stride: int) -> Pair:
    """Return the padding before and after an axis with which ceil(size / stride) windows fit: TensorFlow's SAME."""
    pad = max(kernel - (size % stride or stride), 0)
    return pad // 2, pad - pad // 2


def is_average(param: caffe_pb2.PoolingParameter) -> bool:
    return param.pool in (param.AVE, param.AVE_EXC_PAD, param.AVE_TF)


def counts_padding(param: caffe_pb2.PoolingParameter) -> bool:
    """Return whether the average's divisor includes padding, as BVLC's does."""
    return param.pool not in (param.AVE_EXC_PAD, param.AVE_TF) and param.avg_include_pad


def rounds_down(layer: Layer, param: caffe_pb2.PoolingParameter) -> bool:
    """Return whether the number of windows is rounded down, by BVLC's round_mode or the forks' ceil_mode.

    The default is up. Raises LayerError if they contradict each other.
    """
    down = param.round_mode == caffe_pb2.PoolingParameter.FLOOR
    if not param.HasField("ceil_mode"):
        return down
    if param.HasField("round_mode") and param.ceil_mode == down:
        given = f"round_mode: {'FLOOR' if down else 'CEIL'} and ceil_mode: {str(param.ceil_mode).lower()}"
        raise layer.error(f"{given} contradict each other: give one of them", "pooling_param.ceil_mode")
    return not param.ceil_mode


def _pair(layer: Layer, param: Message, both: str, h: str, w: str) -> Pair:
    """Return a size given once for both axes, or once for each."""
    given = [f for f in (h, w) if param.HasField(f)]
    if given and param.HasField(both):
        raise layer.error(f"{both} and {' and '.join(given)} are both given: give one of them", f"pooling_param.{both}")
    if len(given) == 1:
        raise layer.error(f"{h} and {w} go together, only {given[0]} is given", f"pooling_param.{given[0]}")
    if not given and both == "kernel_size" and not param.HasField(both):
        raise layer.error(f"{both} is missing: give {both}, or {h} and {w}, or global_pooling", "pooling_param")
    return (getattr(param, h), getattr(param, w)) if given else (getattr(param, both),) * 2
