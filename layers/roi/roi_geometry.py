"""For all ROI layers: checked rois, the originals' rounding, and the plan of the pixels or samples that bins read.

rois are (R, 5): batch index, x1, y1, x2, y2 in pixels of the input image, both ends inclusive; (R, 5, 1, 1) is the same.
Every geometry is computed in the type of the feature map, as the originals (templates) do: float32 products decide
the rounding ties of a float32 net, float64 products those of a float64 net.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array

Ints = NDArray[np.int64]

LIMIT = 2.0**29
"""Largest coordinate, in the image or on the map. Beyond it, the originals' int arithmetic overflows."""

LOWEST = -float(np.finfo(np.float32).max)
"""-FLT_MAX, where the originals' maxima start, in double nets too. A number that is not greater never wins."""


class Bins(NamedTuple):
    """The pixels of each bin, ends exclusive, clipped to the map: rows (R, PH), columns (R, PW)."""

    hstart: Ints
    hend: Ints
    wstart: Ints
    wend: Ints

    def areas(self) -> Ints:
        """Return the pixels in each bin (R, PH, PW), at least 1."""
        height, width = self.hend - self.hstart, self.wend - self.wstart
        # At least 1: an empty bin's sum of 0 is divided by it.
        areas: Ints = np.maximum(height, 1)[:, :, None] * np.maximum(width, 1)[:, None, :]
        return areas

    def of(self, r: int, ph: int, pw: int) -> tuple[range, range]:
        """Return the rows and the columns of one bin."""
        return range(self.hstart[r, ph], self.hend[r, ph]), range(self.wstart[r, pw], self.wend[r, pw])


BIN_TYPES = ", ".join(["int64[:,::1]"] * 4)
"""The types of Bins' arrays, for loops."""


class AxisSteps(NamedTuple):
    """The position of bins along one axis of the map, step by step, before they are clipped to it.

    extent (R,): the roi's length; length (R,): a bin's; edges (R, P + 1): where the bins meet, not rounded; start, end
    (R, P): each bin's two edges, rounded to pixels where the layer does that.
    """

    extent: Array
    length: Array
    edges: Array
    start: Array
    end: Array

    def whole(self) -> AxisSteps:
        """Return the bins in whole pixels: from the floor of their start to the ceil of their end."""
        start, end = np.floor(self.start).astype(np.int64), np.ceil(self.end).astype(np.int64)
        return self._replace(start=start, end=end)


class RoiSteps(NamedTuple):
    """The position of rois on the map: x1, y1, x2, y2 (R, 4) after the first of two steps and after both; then each axis."""

    halfway: Array
    corners: Array
    h: AxisSteps
    w: AxisSteps

    def clipped(self, size: tuple[int, int]) -> Bins:
        """Return the bins in whole pixels, clipped to a map of size (H, W)."""
        h, w = self.h, self.w
        return Bins(h.start.clip(0, size[0]), h.end.clip(0, size[0]), w.start.clip(0, size[1]), w.end.clip(0, size[1]))


Places = TypeVar("Places")


@dataclass(frozen=True)
class RoiPlan(Generic[Places]):
    """The part of a map that rois (R, 5) read. It is made once in a forward, for backward, explain, trace and tests too.

    size: (H, W) of the map; steps: how the rois were mapped there; places: the pixels or the samples of each bin.
    """

    rois: Array
    size: tuple[int, int]
    steps: RoiSteps
    places: Places

    @property
    def images(self) -> Ints:
        """Return the image of each roi (R,)."""
        return self.rois[:, 0].astype(np.int64)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return (R, PH, PW)."""
        return len(self.rois), self.steps.h.start.shape[1], self.steps.w.start.shape[1]


BinPlan = RoiPlan[Bins]

Cut = Callable[[Array, Array, int], AxisSteps]
"""(first (R,), last (R,), number of bins) -> the bins along one axis."""


def cut_corners(halfway: Array, corners: Array, pooled: tuple[int, int], cut: Cut) -> RoiSteps:
    """Return the steps of corners (R, 4) on the map, cut into (PH, PW) bins. halfway: the corners before the last step."""
    x1, y1, x2, y2 = corners.T
    return RoiSteps(halfway, corners, cut(y1, y2, pooled[0]), cut(x1, x2, pooled[1]))


def cut_axis(first: Array, extent: Array, count: int) -> AxisSteps:
    """Return the bins along one axis of rois that begin at first (R,). Nothing is rounded."""
    length = extent / first.dtype.type(count)
    # As in the originals, a product for each edge: a running sum would round differently.
    edges = np.arange(count + 1, dtype=first.dtype) * length[:, None] + first[:, None]
    return AxisSteps(extent, length, edges, edges[:, :-1], edges[:, 1:])


def at_least(least: float, extent: Array) -> Array:
    """Return the greater of extent (R,) and least, in extent's type."""
    longer: Array = np.maximum(extent, extent.dtype.type(least))
    return longer


def rois_problem(rois: Array, images: int, spatial_scale: float) -> str:
    """Return the fault in rois (R, 5) for a batch of that many images, with the first bad row, or ""."""
    corners = rois[:, 1:].astype(np.float64)
    for bad, text in (
        (~np.isfinite(corners).all(axis=1), "a coordinate is NaN or infinite"),
        (~(np.isfinite(rois[:, 0]) & (rois[:, 0] == np.trunc(rois[:, 0]))), "the batch index is not a whole number"),
        (~((rois[:, 0] >= 0) & (rois[:, 0] < images)), f"the batch index is out of range: the batch has {images} images"),
        (
            # The limit holds in the image and on the map.
            (np.abs(corners).max(axis=1, initial=0) * max(1.0, abs(spatial_scale)) > LIMIT),
            f"a coordinate is beyond {LIMIT:.0f} pixels of the image or the map (spatial_scale {spatial_scale:g})",
        ),
    ):
        if bad.any():
            row = int(bad.argmax())
            return f"roi {row} is {[float(v) for v in rois[row]]}: {text}"
    return ""


def round_half_away(values: Array) -> Array:
    """Return values rounded as by C's round(): halves away from zero. NumPy rounds them to even."""
    # Not floor(|v| + 0.5): in float32, the number just below 0.5 would become 1.
    whole = np.trunc(values)
    return np.where(np.abs(values - whole) >= 0.5, whole + np.copysign(values.dtype.type(1), values), whole)
