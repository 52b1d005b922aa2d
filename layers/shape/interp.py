"""Interp: maps resized bilinearly, with aligned corners.

    y[i, j] = the sum over two rows r and two columns c of (their shares) * x[r, c],
    row i of OH lies at i * ratio, ratio = (H - 1) / (OH - 1) (0 for OH = 1), between floor(i * ratio) and the next row

Positions are float32 in float64 nets too, as in the original. Source: hszhao/PSPNet's and gpapan/caffe's interp_layer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe import threads
from minicaffe.blob import Array, Blob
from minicaffe.kernels import kernel
from minicaffe.layer import Unary
from minicaffe.reads import Axis
from minicaffe.threads import Index, Scratch, each_block

TapArrays = tuple[NDArray[np.uintp], Array]
"""The two neighbours of each place on an axis of the result, and their weights: each (2, size), or (1, size) if the axis keeps
its size."""


@dataclass(frozen=True)
class Taps:
    """The taps of `out` positions on an axis of `size`: the pixels before and after, and the latter's share.

    They are computed on first use, when a blob's memory is allocated too.
    """

    size: int
    out: int

    @property
    def ratio(self) -> np.float32:
        """Return the step from one position to the next."""
        ratio: np.float32 = np.float32(self.size - 1) / np.float32(self.out - 1) if self.out > 1 else np.float32(0)
        return ratio

    @cached_property
    def before(self) -> NDArray[np.intp]:
        return np.minimum(self._places().astype(np.intp), self.size - 1)

    @cached_property
    def after(self) -> NDArray[np.intp]:
        return np.minimum(self.before + 1, self.size - 1)

    @cached_property
    def share(self) -> NDArray[np.float32]:
        return np.asarray(self._places() - self.before.astype(np.float32))

    def _places(self) -> NDArray[np.float32]:
        return np.asarray(self.ratio * np.arange(self.out, dtype=np.float32))

    def shares(self, dtype: np.dtype[np.floating]) -> tuple[Array, Array]:
        """Return the weights of the pixels before and after, (out,) each."""
        after = self.share.astype(dtype)
        return 1 - after, after

    def axis(self, dtype: np.dtype[np.floating], first: int) -> TapArrays:
        """Return the pixels, counted from `first` on, and their shares."""
        kept = slice(1 if self.size == self.out else 2)
        return np.stack([self.before, self.after])[kept].astype(np.uintp) + np.uintp(first), np.stack(self.shares(dtype))[kept]

    def runs(self, longest: int) -> list[Run]:
        """Return the positions in runs of constant step, at most `longest` long."""
        step = max(1, int(self.ratio))
        breaks = np.diff(np.stack([self.before, self.after]) - step * np.arange(self.out)).any(axis=0)
        starts = sorted({*range(0, self.out, longest), *(np.flatnonzero(breaks) + 1).tolist()})
        parts = list(zip(starts, [*starts[1:], self.out]))
        before, after = (
            [slice(int(at[start]), int(at[end - 1]) + 1, step) for start, end in parts] for at in (self.before, self.after)
        )
        return list(zip([slice(*part) for part in parts], before, after))

    def bands(self, dtype: np.dtype[np.floating], width: int, *, transposed: bool = False) -> list[Band]:
        """Return the matrix of the shares (out, size), or its transpose, in bands of width rows without the zeros around."""
        return _bands(self, dtype.char, width, transposed)

    def reads(self, start: int) -> Axis:
        """Return the one or two places next to each position, on an axis that begins with `start` places more."""
        stride, divisor = (self.size - 1, self.out - 1) if self.out > 1 else (0, 1)
        return Axis(stride, divisor, (start - 1) * divisor + 1, (start + 1) * divisor - 1)


class ClampedTaps(Taps):
    """Taps at (i + 0.5) * size / out - 0.5, at least 0 and at most size - 1, as in OpenCV's INTER_LINEAR."""

    @property
    def ratio(self) -> np.float32:
        ratio: np.float32 = np.float32(self.size) / np.float32(self.out)
        return ratio

    def _places(self) -> NDArray[np.float32]:
        places = np.float64(self.ratio) * (np.arange(self.out) + 0.5) - 0.5
        return np.asarray(np.clip(places.astype(np.float32), 0, self.size - 1))

    def reads(self, start: int) -> Axis:
        middle = self.size + (2 * start - 1) * self.out  # position i lies at (2 i size + middle) / (2 out)
        return Axis(2 * self.size, 2 * self.out, middle - 2 * self.out + 1, middle + 2 * self.out - 1)


Run = tuple[slice, slice, slice]
"""Places of the result, and the places before and after them."""

Band = tuple[slice, slice, Array]
"""Places of the result, the places that they read, and the weights: a row for each place of the result."""

ROWS, COLUMNS = 8, 16
"""Rows, or columns, that one band makes. Fewer are too small a product; more have too many zeros."""

SPARSE = 6
"""If y has fewer than 1 / 6 of x's numbers, the four neighbours of each are gathered, because most of x is not read."""

FEW = 4
"""Most runs on an axis for which views of the rows and columns are faster than the product."""

BLENDED = 1 << 16
"""Numbers of the rows blended at once: 256 KB of float32, which stay in a core's cache."""


@lru_cache(maxsize=64)
def _bands(taps: Taps, dtype: str, width: int, transposed: bool) -> list[Band]:
    size, out = taps.size, taps.out
    to, source = np.tile(np.arange(out), 2), np.concatenate([taps.before, taps.after])
    shares = np.concatenate(taps.shares(np.dtype(dtype)))
    if transposed:
        to, source = source, to
    order = np.argsort(to, kind="stable")
    to, source, shares = to[order], source[order], shares[order]
    found = []
    for start in range(0, size if transposed else out, width):
        part = slice(*np.searchsorted(to, (start, start + width)))
        end = min(start + width, size if transposed else out)
        first, last = (int(source[part].min()), int(source[part].max()) + 1) if part.start < part.stop else (0, 0)
        band = np.zeros((end - start, last - first), dtype)
        np.add.at(band, (to[part] - start, source[part] - first), shares[part])
        found.append((slice(start, end), slice(first, last), band))
    return found


def multiply_rows(bands: list[Band], x: Array, y: Array) -> Array:
    """Compute y (M, H', W'): the bands' matrix (H', H) times each map of x (M, H, W')."""
    for to, source, band in bands:
        np.matmul(band, x[:, source], out=y[:, to])
    return y


def multiply_columns(bands: list[Band], x: Array, y: Array) -> Array:
    """Compute y (M, H, W'): each map of x (M, H, W) times the transpose of the bands' matrix (W', W)."""
    for to, source, band in bands:
        np.matmul(x[:, :, source], band.T, out=y[:, :, to])
    return y


def shrink(rows: Taps, columns: Taps, x: Array, y: Array) -> None:
    """Compute y (M, H', W') from the neighbours of each position in x (M, H, W): rows first, then columns."""
    row_runs, column_runs = rows.runs(max(1, BLENDED // columns.size)), columns.runs(columns.out)
    above, below = (share[:, None] for share in rows.shares(x.dtype))
    left, right = columns.shares(x.dtype)
    scratch = Scratch(x.dtype)
    for one, out in zip(x, y):
        for to, before, after in row_runs:
            lines, more = (scratch(name, to.stop - to.start, columns.size) for name in ("lines", "more"))
            _blend(one[before], above[to], one[after], below[to], lines, more)
            for places, first, second in column_runs:
                target = out[to, places]
                _blend(lines[:, first], left[places], lines[:, second], right[places], target, more[:, places])


def _blend(a: Array, a_share: Array, b: Array, b_share: Array, out: Array, more: Array) -> None:
    """Compute out = a * a_share + b * b_share. more: memory of out's shape."""
    np.multiply(a, a_share, out=out)
    np.multiply(b, b_share, out=more)
    np.add(out, more, out=out)


Near = list[tuple[NDArray[np.intp], Array]]


def neighbours(rows: Taps, columns: Taps, dtype: np.dtype[np.floating]) -> Near:
    """Return the four neighbours of each of y's pixels in a map, and their shares, (H' * W',) each.

    There are two, or one, if axes keep their size.
    """
    pairs = [
        list(zip((taps.before, taps.after), taps.shares(dtype)))[: 1 if taps.size == taps.out else 2]
        for taps in (rows, columns)
    ]
    return [
        ((row[:, None] * columns.size + column).reshape(-1), np.outer(row_share, share).reshape(-1))
        for row, row_share in pairs[0]
        for column, share in pairs[1]
    ]


def sample(near: Near, x: Array, y: Array) -> None:
    """Compute y (M, H', W') from x (M, H, W), reading only the neighbours of each position."""
    (first, first_share), *others = near
    more = np.empty(len(first), x.dtype)
    for one, out in zip(*(maps.reshape(len(maps), math.prod(maps.shape[1:])) for maps in (x, y))):
        np.take(one, first, out=out, mode="clip")  # "clip" avoids a copy of out
        np.multiply(out, first_share, out=out)
        for place, share in others:
            np.take(one, place, out=more, mode="clip")
            np.multiply(more, share, out=more)
            np.add(out, more, out=out)


def scatter(near: Near, dy: Array, dx: Array) -> None:
    """Compute dx (M, H, W) from dy (M, H', W'): the transpose of sample."""
    for one, out in zip(dy.reshape(len(dy), math.prod(dy.shape[1:])), dx):
        whole = np.zeros(out.size, out.dtype)
        for place, share in near:
            np.add.at(whole, place, one * share)
        out[...] = whole.reshape(out.shape)


class Resizing(NamedTuple):
    """The pads at the start and at the end, and the resizing of the remaining rows and columns."""

    pads: tuple[int, int]
    rows: Taps
    columns: Taps


@kernel
def resize(x: Array, how: Resizing, y: Array) -> None:
    """Write y (N, C, OH, OW): x (N, C, H, W) resized."""
    x, y = maps_of(x, how), y.reshape(-1, how.rows.out, how.columns.out)
    if SPARSE * how.rows.out * how.columns.out < how.rows.size * how.columns.size:
        near = neighbours(how.rows, how.columns, x.dtype)
        _each_maps(how, len(x), lambda index: sample(near, x[index], y[index]))
        return
    if all(taps.ratio >= 2 and len(taps.runs(taps.out)) <= FEW for taps in (how.rows, how.columns)):
        _each_maps(how, len(x), lambda index: shrink(how.rows, how.columns, x[index], y[index]))
        return
    rows = how.rows.bands(x.dtype, ROWS if how.rows.out > how.rows.size // 2 + 1 else ROWS // 2)
    columns = how.columns.bands(x.dtype, COLUMNS)

    def step(index: Index) -> None:
        if not _product(how, rows, columns, x[index], y[index]):
            sample(neighbours(how.rows, how.columns, x.dtype), x[index], y[index])

    _each_maps(how, len(x), step)


@kernel
def resize_backward(dy: Array, how: Resizing, dx: Array) -> None:
    """Write dx (N, C, H, W) from dy (N, C, OH, OW)."""
    if any(how.pads):
        dx[...] = 0
    dx, dy = maps_of(dx, how), dy.reshape(-1, how.rows.out, how.columns.out)
    rows = how.rows.bands(dy.dtype, ROWS, transposed=True)
    columns = how.columns.bands(dy.dtype, COLUMNS, transposed=True)

    def step(index: Index) -> None:
        if not _product(how, rows, columns, dy[index], dx[index]):
            scatter(neighbours(how.rows, how.columns, dy.dtype), dy[index], dx[index])

    _each_maps(how, len(dx), step)


def maps_of(array: Array, how: Resizing) -> Array:
    """Return an array (N, C, H, W) without the pads as a view (N * C, H', W')."""
    n, c, h, w = array.shape
    start, end = -how.pads[0], how.pads[1]
    return array.reshape(n * c, h, w)[:, start : h + end, start : w + end]


def _product(how: Resizing, rows: list[Band], columns: list[Band], x: Array, y: Array) -> bool:
    """Compute y (M, H', W') = rows x (M, H, W) columns^T.

    Return whether y is valid: 0 * inf would spread within a band.
    """
    if how.rows.size == how.rows.out and how.columns.size == how.columns.out:
        y[...] = x
        return True
    with np.errstate(all="ignore"):
        if x.shape[1] < y.shape[1]:  # columns cost most, so multiply them with the fewer rows
            multiply_rows(rows, multiply_columns(columns, x, np.empty((*x.shape[:2], y.shape[2]), x.dtype)), y)
        else:
            multiply_columns(columns, multiply_rows(rows, x, np.empty((*y.shape[:2], x.shape[2]), x.dtype)), y)
        return bool(np.isfinite(y.sum()))


def _each_maps(how: Resizing, maps: int, step: Callable[[Index], None]) -> None:
    within = min(how.rows.size, how.rows.out) * max(how.columns.size, how.columns.out)
    each_block((maps,), step, max(1, 2 * threads.BLOCK // within))


class ResizedMaps(Unary):
    """Maps resized bilinearly. Subclasses define sizes, and taps for other positions than Interp's.

    bottom: x (N, C, H, W). top: y (N, C, OH, OW). Raises LayerError for a bottom of other than 4 axes or without pixels, and
    for sizes below 1.
    """

    copies = (0, 0)
    uses_kernels = ((resize,), (resize_backward,))
    pads = 0, 0
    rows: Taps
    columns: Taps

    def sizes(self, height: int, width: int) -> tuple[int, int]:
        """Return OH and OW for maps of this size."""
        raise NotImplementedError

    def scaled(self, size: int, factor: float, field: str) -> int:
        """Return size * factor in float32, rounded down. Raises LayerError for a factor that is not finite."""
        with np.errstate(over="ignore"):
            length = np.float32(size) * np.float32(factor)
        if not np.isfinite(length):
            raise self.error(f"{field} {factor:g} is too large, or not a number", f"{self.param_block[0]}.{field}")
        return int(length)

    def taps(self, size: int, out: int) -> Taps:
        """Return the positions on an axis."""
        return Taps(size, out)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.rows = self.columns = Taps(0, 0)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) != 4:
            raise self.error(f"the bottom must have 4 axes (N, C, H, W), its shape is {shape}", "bottom[0]")
        height, width = (size + sum(self.pads) for size in shape[2:])
        if min(height, width) < 1:
            raise self.error(f"pads {self.pads} leave nothing of a map of {shape[2]}x{shape[3]}", self.param_block[0])
        sizes = self.sizes(height, width)
        if min(sizes) < 1:
            raise self.error(f"a map of {height}x{width} would become {sizes[0]}x{sizes[1]}", self.param_block[0])
        axes = self.taps(height, sizes[0]), self.taps(width, sizes[1])
        top[0].reshape(*shape[:2], *sizes)
        if axes != (self.rows, self.columns):  # for equal sizes, keep what the taps have computed
            self.rows, self.columns = axes

    @property
    def how(self) -> Resizing:
        """Return how maps are resized."""
        return Resizing(self.pads, self.rows, self.columns)

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        return tuple(taps.reads(-self.pads[0]) for taps in (self.rows, self.columns))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        resize(bottom[0].data, self.how, top[0].data)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            resize_backward(top[0].diff, self.how, bottom[0].diff)


class Interp(ResizedMaps):
    """x, cropped by -pad_beg rows and columns at the start and -pad_end at the end, then resized bilinearly.

    shrink_factor s: (H - 1) / s + 1 rows; zoom_factor z: H + (H - 1) (z - 1); both: shrunk, then zoomed; else height and width.
    bottom: x (N, C, H, W). top: y (N, C, OH, OW).
    Raises LayerError for a bottom of other than 4 axes, sizes that are missing or below 1, and pads above 0.
    """

    type = "Interp"
    param_block = ("interp_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        param = self.param.interp_param
        self.pads = param.pad_beg, param.pad_end
        if max(self.pads) > 0:
            raise self.error(f"pad_beg and pad_end must be <= 0 (they crop), got {self.pads}", "interp_param")
        factors = [param.HasField(name) for name in ("shrink_factor", "zoom_factor")]
        if not any(factors) and not (param.HasField("height") and param.HasField("width")):
            raise self.error("give shrink_factor, zoom_factor, or height and width", "interp_param")
        for name in ("shrink_factor", "zoom_factor") if any(factors) else ("height", "width"):
            if getattr(param, name) < 1:
                raise self.error(f"{name} must be > 0, got {getattr(param, name)}", f"interp_param.{name}")

    def sizes(self, height: int, width: int) -> tuple[int, int]:
        param = self.param.interp_param
        if not (param.HasField("shrink_factor") or param.HasField("zoom_factor")):
            return param.height, param.width
        height, width = ((size - 1) // param.shrink_factor + 1 for size in (height, width))
        return height + (height - 1) * (param.zoom_factor - 1), width + (width - 1) * (param.zoom_factor - 1)

    def _geometry(self, x: Blob) -> tuple[int, ...]:
        """Return the kernels' H, W, first row and column, H' and W' after the crop, OH, OW."""
        return *x.shape[2:], -self.pads[0], self.rows.size, self.columns.size, self.rows.out, self.columns.out

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        count, x, y = top[0].count, bottom[0].device_data("read"), top[0].device_data("write")
        ratios = float(self.rows.ratio), float(self.columns.ratio)
        self.launch("interp.interp", count, count, *self._geometry(bottom[0]), *ratios, x, y)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            count, dy, dx = bottom[0].count, top[0].device_diff("read"), bottom[0].device_diff("write")
            ratios = float(self.rows.ratio), float(self.columns.ratio)
            self.launch("interp.interp_backward", count, count, *self._geometry(bottom[0]), *ratios, dy, dx)
