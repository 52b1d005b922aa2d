"""Interp: maps resized bilinearly, corners on corners.

    y[i, j] = the sum over two rows r and two columns c of (their shares) * x[r, c],
    row i of OH lies at i * ratio, ratio = (H - 1) / (OH - 1) (0 for OH = 1), between floor(i * ratio) and the next row

Positions are float32 in float64 nets too, as in the original. Source: hszhao/PSPNet's and gpapan/caffe's interp_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minicaffe import blocks
from minicaffe.blob import Array, Blob
from minicaffe.blocks import Index, each_block
from minicaffe.layer import Layer


class Interp(Layer):
    """x, after a crop of -pad_beg rows and columns at the start and -pad_end at the end, resized bilinearly.

    shrink_factor s: (H - 1) / s + 1 rows; zoom_factor z: H + (H - 1) (z - 1); both: shrunk, then zoomed; else height and width.
    bottom: x (N, C, H, W). top: y (N, C, OH, OW).
    Raises LayerError for a bottom of other than 4 axes, sizes that are missing or below 1, and pads above 0.
    """

    type = "Interp"
    num_bottom = 1
    num_top = 1
    param_block = ("interp_param",)
    weight_names = ()
    copies = (0, 0)
    rows: Taps
    columns: Taps

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
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

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) != 4:
            raise self.error(f"the bottom must have 4 axes (N, C, H, W), its shape is {shape}", "bottom[0]")
        sizes = [size + sum(self.pads) for size in shape[2:]]
        if min(sizes) < 1:
            raise self.error(f"pads {self.pads} leave nothing of a map of {shape[2]}x{shape[3]}", "interp_param")
        self.rows, self.columns = (Taps.of(size, self.resized(size, axis)) for axis, size in enumerate(sizes))
        top[0].reshape(*shape[:2], self.rows.out, self.columns.out)

    def resized(self, size: int, axis: int) -> int:
        """How many rows (axis 0) or columns (axis 1) `size` become."""
        param = self.param.interp_param
        if not (param.HasField("shrink_factor") or param.HasField("zoom_factor")):
            return param.width if axis else param.height
        size = (size - 1) // param.shrink_factor + 1
        return size + (size - 1) * (param.zoom_factor - 1)

    def _maps(self, array: Array) -> Array:
        """(N, C, H, W) -> (N * C, H', W'), a view of what the pads leave."""
        n, c, h, w = array.shape
        start, end = -self.pads[0], self.pads[1]
        return array.reshape(n * c, h, w)[:, start : h + end, start : w + end]

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = self._maps(bottom[0].data), top[0].data.reshape(-1, self.rows.out, self.columns.out)

        def step(index: Index) -> None:
            if self.rows.out > self.rows.size:  # gathering columns costs most: over the fewer rows
                self.rows.resize_rows(self.columns.resize_columns(x[index]), y[index])
                return
            part = x[index]
            within = np.empty((len(part), self.rows.out, self.columns.size), part.dtype)
            self.rows.resize_rows(part, within)
            y[index] = self.columns.resize_columns(within)

        self._each_maps(len(x), step)

    def _each_maps(self, maps: int, step: Callable[[Index], None]) -> None:
        within = min(self.rows.size, self.rows.out) * max(self.columns.size, self.columns.out)
        each_block((maps,), step, max(1, 2 * blocks.BLOCK // within))

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        dx, dy = self._maps(bottom[0].diff), top[0].diff.reshape(-1, self.rows.out, self.columns.out)
        if any(self.pads):
            bottom[0].diff[...] = 0

        def step(index: Index) -> None:
            if self.rows.out > self.rows.size:
                dx[index] = self.columns.add_columns(self.rows.add_rows(dy[index]))
            else:
                dx[index] = self.rows.add_rows(self.columns.add_columns(dy[index]))

        self._each_maps(len(dx), step)

    def _geometry(self, x: Blob) -> tuple[int, ...]:
        """The kernels' H, W, first row and column, H' and W' after the crop, OH, OW."""
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


@dataclass(frozen=True)
class Taps:
    """Of each of `out` places on an axis of `size`: the place before it, the place after it, and that one's share."""

    size: int
    out: int
    ratio: np.float32
    before: NDArray[np.intp]
    after: NDArray[np.intp]
    share: NDArray[np.float32]

    @staticmethod
    def of(size: int, out: int) -> Taps:
        ratio = np.float32(size - 1) / np.float32(out - 1) if out > 1 else np.float32(0)
        places = ratio * np.arange(out, dtype=np.float32)
        before = np.minimum(places.astype(np.intp), size - 1)
        return Taps(size, out, ratio, before, np.minimum(before + 1, size - 1), places - before.astype(np.float32))

    def shares(self, dtype: np.dtype[np.floating]) -> tuple[Array, Array]:
        """Of the place before and of that after, (out,) each."""
        after = self.share.astype(dtype)
        return 1 - after, after

    def resize_columns(self, x: Array) -> Array:
        """(M, H, size) -> (M, H, out)."""
        if self.size == self.out:
            return x
        before, after = self.shares(x.dtype)
        y: Array = np.take(x, self.before, axis=2, mode="clip")
        y *= before
        more = np.take(x, self.after, axis=2, mode="clip")
        more *= after
        y += more
        return y

    def resize_rows(self, x: Array, y: Array) -> None:
        """(M, size, W) -> y (M, out, W)."""
        if self.size == self.out:
            y[...] = x
            return
        before, after = self.shares(x.dtype)
        more = np.empty((len(x), x.shape[2]), x.dtype)
        for i in range(self.out):
            np.multiply(x[:, self.before[i]], before[i], out=y[:, i])
            np.multiply(x[:, self.after[i]], after[i], out=more)
            y[:, i] += more

    def add_rows(self, dy: Array) -> Array:
        """(M, out, W) -> (M, size, W), the transpose of resize_rows."""
        if self.size == self.out:
            return dy
        before, after = self.shares(dy.dtype)
        dx = np.zeros((len(dy), self.size, dy.shape[2]), dy.dtype)
        for i in range(self.out):
            dx[:, self.before[i]] += dy[:, i] * before[i]
            dx[:, self.after[i]] += dy[:, i] * after[i]
        return dx

    def add_columns(self, dy: Array) -> Array:
        """(M, H, out) -> (M, H, size), the transpose of resize_columns."""
        if self.size == self.out:
            return dy
        dx = np.zeros((*dy.shape[:2], self.size), dy.dtype)
        for to, share in zip((self.before, self.after), self.shares(dy.dtype)):
            starts = np.flatnonzero(np.diff(to, prepend=-1))
            part = dy * share
            dx[:, :, to[starts]] += part if len(starts) == self.out else np.add.reduceat(part, starts, axis=2)
        return dx
