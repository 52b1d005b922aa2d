"""The products of a deformable convolution: columns gathered from bilinear samples, and their transposes.

    columns[window, tap, c] = x[c] at (window * stride - pad + tap * dilation + offset[window, tap]);   y = columns @ weight

A mask, if there is one, multiplies each sample. A channels-last map makes a neighbour of a sample a row: columns are four
gathers of rows, each times its share. Backward adds rows of the columns' gradient to pixels, in an order that depends on the
sizes only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from minicaffe.blob import Array
from minicaffe.kernels import kernel
from minicaffe.layers.roi.roi_geometry import Ints
from minicaffe.layers.roi.row_sums import items, longest_first
from minicaffe.threads import Scratch, parts, run

from .window import Window

BLOCK_BYTES = 4 << 20
"""About how many bytes of columns are made and multiplied at a time in forward."""

ROW_BYTES = 1 << 18
"""About how many bytes of rows are gathered at a time: a core's cache holds two of them."""

LEAST = 256
"""Least columns of a product."""


class Places(NamedTuple):
    """The places where the taps of one image's windows sample the map. Each array is (windows, taps, deformable groups).

    inside: whether the sample is on the map, at row `low_h` + `share_h` and column `low_w` + `share_w`; a sample outside is 0.
    high_h, high_w: the next row and column, or the same one at the map's end.
    """

    inside: Array
    low_h: Ints
    high_h: Ints
    share_h: Array
    low_w: Ints
    high_w: Ints
    share_w: Array

    def neighbours(self) -> Iterator[tuple[Ints, Ints, Array]]:
        """Return (rows, columns, share) of each sample's four pixels: low low, low high, high low, high high."""
        one = self.share_h.dtype.type(1)
        for row, of_row in ((self.low_h, one - self.share_h), (self.high_h, self.share_h)):
            for column, of_column in ((self.low_w, one - self.share_w), (self.high_w, self.share_w)):
                yield row, column, of_row * of_column

    def pixels(self, size: tuple[int, int]) -> Ints:
        """Return the four neighbours (4, windows, taps, groups) in the flat map; one past its end if the sample is outside."""
        beyond = size[0] * size[1]
        flat = [np.where(self.inside, row * size[1] + column, beyond) for row, column, _ in self.neighbours()]
        return np.stack(flat)

    def shares(self) -> Array:
        """Return the shares of the four neighbours (4, windows, taps, groups)."""
        return np.stack([share for _, _, share in self.neighbours()])


def places_of(offset: Array, window: Window, size: tuple[int, int]) -> Places:
    """Return the places of one image's samples on a map (H, W).

    offset: (groups * taps * 2, windows down, windows across), rows first. A sample is on the map from its first pixel to one
    past its last; past the last pixel's centre it has that pixel's value.
    """
    taps, (down, across) = math.prod(window.kernel), offset.shape[1:]
    moves = offset.reshape(-1, taps, 2, down * across).transpose(2, 3, 1, 0)  # (2, windows, taps, groups)
    corners = np.indices((down, across)).reshape(2, -1)
    steps = np.indices(window.kernel).reshape(2, -1)
    found = [
        _axis(moves[i], corners[i] * window.stride[i] - window.pad[i], steps[i] * window.dilation[i], size[i]) for i in (0, 1)
    ]
    (in_h, *h), (in_w, *w) = found
    inside = in_h & in_w
    low_h, high_h, low_w, high_w = (np.where(inside, pixel, 0) for pixel in (*h[:2], *w[:2]))
    zero = offset.dtype.type(0)
    return Places(inside, low_h, high_h, np.where(inside, h[2], zero), low_w, high_w, np.where(inside, w[2], zero))


def _axis(move: Array, corner: Ints, step: Ints, size: int) -> tuple[Array, Ints, Ints, Array]:
    """Return inside, low, high and the share of high along one axis.

    move: (windows, taps, groups); corner: (windows,); step: (taps,).
    """
    dtype = move.dtype
    corner, step = corner[:, None, None], step[:, None]
    at = (corner + step).astype(dtype) + move
    inside = (at >= 0) & (at < size)
    # Counted from the window's corner, as in the fork's fraction, to round less.
    own = np.where(inside, step.astype(dtype) + move, 0)
    low = np.floor(own)
    pixel = (low.astype(np.int64) + corner).clip(0, max(size - 1, 0))
    last = pixel >= size - 1
    return inside, pixel, np.where(last, pixel, pixel + 1), np.where(last, 0, own - low).astype(dtype)


class Samples(NamedTuple):
    """The pixels that one image's columns are computed from.

    maps (pixels * groups + groups, C / groups): 0 past the last pixel. read and share (4, windows * taps * groups): rows of
    maps, and their shares. each: rows of a window.
    """

    maps: Array
    read: Ints
    share: Array
    each: int
    groups: int
    places: Places

    def put(self, first: int, rows: Array, term: Array) -> None:
        """Write to rows (n, C / groups) the samples from number `first` on. term: an array of the same size, overwritten."""
        part = slice(first, first + len(rows))
        for k in range(4):
            to = term if k else rows
            # The indices are valid. "clip" avoids the copy of out that "raise" makes.
            items(self.maps).take(self.read[k, part], out=items(to), mode="clip")
            to *= self.share[k, part, None]
            if k:
                rows += to

    def columns(self, windows: slice, columns: Array, scratch: Scratch) -> None:
        """Write the columns (windows, taps, C) of these windows."""
        for first, rows, term in self._chunks(windows, columns, scratch):
            self.put(first, rows, term)

    def products(self, windows: slice, columns: Array, scratch: Scratch) -> Array:
        """Return each of the four pixels times columns (windows, taps, C), summed over a group's channels: (4, rows)."""
        sums = np.empty((4, (windows.stop - windows.start) * self.each), columns.dtype)
        for first, rows, term in self._chunks(windows, columns, scratch):
            start = first - windows.start * self.each
            for k in range(4):
                items(self.maps).take(self.read[k, first : first + len(rows)], out=items(term), mode="clip")
                np.einsum("rc,rc->r", term, rows, out=sums[k, start : start + len(rows)])
        return sums

    def slopes(self, windows: slice, columns: Array, scratch: Scratch) -> Array:
        """Return the gradient of these windows' offsets (2, windows, taps, groups).

        columns: their gradient (windows, taps, C).
        """
        low_low, low_high, high_low, high_high = self.products(windows, columns, scratch).reshape(
            4, len(columns), -1, self.groups
        )
        high_h, high_w = self.places.share_h[windows], self.places.share_w[windows]
        down = (high_low - low_low) * (1 - high_w) + (high_high - low_high) * high_w
        return np.stack([down, (low_high - low_low) * (1 - high_h) + (high_high - high_low) * high_h])

    def data_gradient(self, columns: Array, dx: Array, scratch: Scratch) -> None:
        """Compute dx (C, H, W) from the columns' gradient, which is overwritten."""
        adding = adding_of(self)
        maps = scratch("maps", *self.maps.shape)
        maps[...] = 0
        rows = columns.reshape(-1, maps.shape[1])
        step = max(1, ROW_BYTES // rows.strides[0])
        todo = [slice(i, i + step) for i in range(0, len(adding.pixel), step)]

        def add(mine: Sequence[slice]) -> None:
            room = Scratch(rows.dtype)
            with np.errstate(invalid="ignore", over="ignore"):
                for part in mine:
                    adding.add(rows, maps, part, room)

        run(partial(add, mine) for mine in _dealt(todo))
        dx.reshape(len(dx), -1)[...] = maps[: len(maps) - self.groups].reshape(-1, len(dx)).T

    def _chunks(self, windows: slice, columns: Array, scratch: Scratch) -> Iterator[tuple[int, Array, Array]]:
        """Yield the columns of these windows as rows, ROW_BYTES at a time: (first row's number, rows, an array as large)."""
        rows = columns.reshape(-1, self.maps.shape[1])
        step = max(1, ROW_BYTES // rows.strides[0])
        term = scratch("term", min(step, len(rows)), rows.shape[1])
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            yield windows.start * self.each + start, some, term[: len(some)]


class AnySamples(Protocol):
    """The samples of one image's columns."""

    @property
    def groups(self) -> int: ...
    def columns(self, windows: slice, columns: Array, scratch: Scratch) -> None: ...
    def slopes(self, windows: slice, columns: Array, scratch: Scratch) -> Array: ...
    def data_gradient(self, columns: Array, dx: Array, scratch: Scratch) -> None: ...


@kernel
def samples_of(x: Array, offset: Array, window: Window) -> AnySamples:
    """Return the samples for one image's columns.

    x: (C, H, W); offset: (groups * taps * 2, windows down, windows across).
    """
    places = places_of(offset, window, (x.shape[1], x.shape[2]))
    _, taps, groups = places.inside.shape
    pixels, channels = x.shape[1] * x.shape[2], len(x)
    maps = np.empty((pixels + 1, channels), x.dtype)
    maps[:-1] = x.reshape(channels, pixels).T
    maps[-1] = 0
    index = places.pixels((x.shape[1], x.shape[2])) * groups + np.arange(groups)
    rows, share = maps.reshape(-1, channels // groups), places.shares().reshape(4, -1)
    return Samples(rows, index.reshape(4, -1), share, taps * groups, groups, places)


class Adding(NamedTuple):
    """The rows of the columns in the order in which they are added to pixels: the transpose of Samples' reads.

    pixel (P,): rows of maps that samples read, those of most samples first; having[k] of them have more than k terms; first
    (P,): where a pixel's terms start in row and share (T,).
    """

    pixel: Ints
    having: list[int]
    first: Ints
    row: Ints
    share: Array

    def add(self, rows: Array, maps: Array, part: slice, scratch: Scratch) -> None:
        """Write to maps, for this part of `pixel`, the sums of share * rows (windows * taps * groups, C / groups)."""
        first = self.first[part]
        sums, term = (scratch(name, len(first), rows.shape[1]) for name in ("sums", "term"))
        for k, having in enumerate(self.having):
            n = min(having - part.start, len(first))
            if n <= 0:
                break
            at, to = first[:n] + k, (term if k else sums)[:n]
            items(rows).take(self.row[at], out=items(to), mode="clip")
            to *= self.share[at, None]
            if k:
                sums[:n] += to
        maps[self.pixel[part]] = sums  # each pixel occurs at most once


def adding_of(samples: Samples) -> Adding:
    """Return the samples' reads sorted by pixel.

    A pixel's terms are ordered by neighbour (low low first, then low high, ...), then by row.
    """
    outside = len(samples.maps) - samples.groups
    target = samples.read.reshape(-1)
    counts = np.bincount(target, minlength=len(samples.maps))
    order = _stable_order(target, len(samples.maps))
    first = np.cumsum(counts) - counts
    pixel, having = longest_first(counts[:outside])
    pixel = pixel[: having[0] if having else 0]
    return Adding(pixel, having, first[pixel], order % samples.read.shape[1], samples.share.reshape(-1)[order])


def _stable_order(numbers: Ints, beyond: int) -> Ints:
    """Return the stable order of whole numbers in [0, beyond), with NumPy's radix sort, 16 bits at a time."""
    order = np.argsort((numbers & 0xFFFF).astype(np.uint16), kind="stable")
    shift = 16
    while beyond >> shift:
        order = order[np.argsort((numbers[order] >> shift & 0xFFFF).astype(np.uint16), kind="stable")]
        shift += 16
    return order


class Tables(NamedTuple):
    """A deformable convolution: its window, and weight (group, taps, C / group, M / group), in the order of the columns."""

    window: Window
    weight: Array

    @classmethod
    def of(cls, weight: Array, window: Window, group: int) -> Tables:
        """Return the tables of weight (M, C / group, kh, kw)."""
        parted = weight.reshape(group, len(weight) // group, weight.shape[1], -1)
        return cls(window, np.ascontiguousarray(parted.transpose(0, 3, 2, 1)))

    def matrices(self) -> Iterator[tuple[slice, slice, Array]]:
        """Return (channels, filters, weight (taps * C / group, M / group)) of each group."""
        group, taps, channels, filters = self.weight.shape
        for g, matrix in enumerate(self.weight.reshape(group, taps * channels, filters)):
            yield slice(g * channels, (g + 1) * channels), slice(g * filters, (g + 1) * filters), matrix

    def columns(self, windows: int, scratch: Scratch) -> Array:
        """Return memory for columns (windows, taps, C)."""
        group, taps, channels, _ = self.weight.shape
        return scratch("columns", windows, taps, group * channels)

    def parts(self, windows: int) -> list[slice]:
        """Return slices of the windows whose columns take about BLOCK_BYTES."""
        group, taps, channels, _ = self.weight.shape
        count = max(LEAST, BLOCK_BYTES // (group * channels * taps * self.weight.itemsize))
        return [slice(i, min(i + count, windows)) for i in range(0, windows, count)]


def convolve(x: Array, offset: Array, tables: Tables, y: Array, mask: Array | None = None) -> None:
    """Compute y (N, M, *windows), which is overwritten.

    x (N, C, H, W), offset (N, groups * taps * 2, *windows), mask (N, groups * taps, *windows).
    """
    for n, out in enumerate(y.reshape(*y.shape[:2], math.prod(y.shape[2:]))):
        samples, factors = samples_of(x[n], offset[n], tables.window), _factors(mask, n, tables)
        run(partial(_convolve, samples, factors, tables, some, out) for some in _dealt(tables.parts(out.shape[1])))


def _factors(mask: Array | None, n: int, tables: Tables) -> Array | None:
    """Return image n's mask (groups * taps, *windows) in the order of the columns: (windows, taps, groups)."""
    if mask is None:
        return None
    taps, windows = tables.weight.shape[1], math.prod(mask.shape[2:])
    return np.ascontiguousarray(mask[n].reshape(-1, taps, windows).T)


def _times(columns: Array, factors: Array | None, part: slice) -> None:
    """Multiply the columns (windows, taps, C) of some of the windows by their factors, if there are any."""
    if factors is not None:
        by_group = columns.reshape(*factors[part].shape, -1)
        by_group *= factors[part][..., None]


def _dealt(todo: Sequence[slice]) -> list[Sequence[slice]]:
    """Return each thread's parts."""
    return [todo[mine] for mine in parts(len(todo))]


def _convolve(samples: AnySamples, factors: Array | None, tables: Tables, windows: Sequence[slice], y: Array) -> None:
    scratch = Scratch(y.dtype)
    for part in windows:
        columns = tables.columns(part.stop - part.start, scratch)
        samples.columns(part, columns, scratch)
        _times(columns, factors, part)
        for channels, filters, matrix in tables.matrices():
            np.matmul(matrix.T, columns[:, :, channels].reshape(len(columns), -1).T, out=y[filters, part])


class Wanted(NamedTuple):
    """The gradients to compute.

    dx (N, C, H, W), doffset and dmask are overwritten; dweight (M, C / group, kh, kw) is added to.
    """

    dx: Array | None
    doffset: Array | None
    dweight: Array | None
    dmask: Array | None = None


def gradients(x: Array, offset: Array, dy: Array, tables: Tables, wanted: Wanted, mask: Array | None = None) -> None:
    """Compute the wanted gradients from dy (N, M, *windows).

    All columns of an image, then their gradients, are held at once.
    """
    total = np.zeros_like(tables.weight)
    scratch = Scratch(x.dtype)
    for n, (image, moves) in enumerate(zip(x, offset)):
        samples, mine = samples_of(image, moves, tables.window), dy[n].reshape(dy.shape[1], -1)
        factors = _factors(mask, n, tables)
        columns, todo = tables.columns(mine.shape[1], scratch), _dealt(tables.parts(mine.shape[1]))
        if wanted.dweight is not None:
            run(partial(_columns, samples, factors, some, columns) for some in todo)
            _add_weight_gradient(columns, mine, tables, total)
        if any(array is not None for array in (wanted.dx, wanted.doffset, wanted.dmask)):
            run(partial(_column_gradients, mine, tables, some, columns) for some in todo)
        if wanted.dmask is not None:
            run(partial(_mask_gradients, samples, some, columns, wanted.dmask[n]) for some in todo)
        if factors is not None and (wanted.dx is not None or wanted.doffset is not None):
            _times(columns, factors, slice(None))
        if wanted.doffset is not None:
            run(partial(_offset_gradients, samples, some, columns, wanted.doffset[n]) for some in todo)
        if wanted.dx is not None:
            samples.data_gradient(columns, wanted.dx[n], scratch)
    if wanted.dweight is not None:
        wanted.dweight[...] += total.transpose(0, 3, 2, 1).reshape(wanted.dweight.shape)


def _columns(samples: AnySamples, factors: Array | None, windows: Sequence[slice], columns: Array) -> None:
    scratch = Scratch(columns.dtype)
    for part in windows:
        samples.columns(part, columns[part], scratch)
        _times(columns[part], factors, part)


def _add_weight_gradient(columns: Array, dy: Array, tables: Tables, total: Array) -> None:
    """Add dy (M, windows) times columns (windows, taps, C) to total (group, taps, C / group, M / group)."""
    for (channels, filters, _), to in zip(tables.matrices(), total):
        values = columns[:, :, channels].reshape(len(columns), -1)
        rows = to.reshape(-1, to.shape[2])

        def add(some: slice, values: Array = values, rows: Array = rows, filters: slice = filters) -> None:
            rows[some] += values[:, some].T @ dy[filters].T

        run(partial(add, some) for some in parts(len(rows), least=64))


def _column_gradients(dy: Array, tables: Tables, windows: Sequence[slice], columns: Array) -> None:
    """Compute columns' gradient (windows, taps, C) from dy (M, windows)."""
    for part in windows:
        for channels, filters, matrix in tables.matrices():
            product = dy[filters, part].T @ matrix.T
            columns[part, :, channels] = product.reshape(len(product), columns.shape[1], -1)


def _mask_gradients(samples: AnySamples, windows: Sequence[slice], columns: Array, dmask: Array) -> None:
    """Compute dmask (groups * taps, *windows).

    It is the gradient of the masked columns times the samples, summed over a group's channels.
    """
    scratch = Scratch(columns.dtype)
    flat = dmask.reshape(samples.groups, columns.shape[1], -1)
    for part in windows:
        given = columns[part].reshape(-1, columns.shape[1], samples.groups, columns.shape[2] // samples.groups)
        values = scratch("samples", *given.shape)
        samples.columns(part, values.reshape(columns[part].shape), scratch)
        flat[:, :, part] = np.einsum("wtgc,wtgc->gtw", given, values)


def _offset_gradients(samples: AnySamples, windows: Sequence[slice], columns: Array, doffset: Array) -> None:
    """Compute doffset (groups * taps * 2, *windows).

    It is the columns' gradient times the slopes of the bilinear samples.
    """
    scratch = Scratch(columns.dtype)
    flat = doffset.reshape(samples.groups, columns.shape[1], 2, -1)
    for part in windows:
        flat[:, :, :, part] = samples.slopes(part, columns[part], scratch).transpose(3, 2, 0, 1)
