"""What the ROI layers share: checked rois, the originals' rounding, and adding up at repeated places.

rois are (R, 5): batch index, x1, y1, x2, y2 in pixels of the input image, both ends inclusive; (R, 5, 1, 1) is the same.
Every geometry is computed in the type of the feature map, as the originals (templates) do: float32 products decide
the rounding ties of a float32 net, float64 products those of a float64 net.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe.errors import Error

Array = NDArray[Any]
Ints = NDArray[np.int64]

LIMIT = 2.0**29
"""Largest coordinate, in the image or on the map: beyond it the originals' int arithmetic overflows."""

LOWEST = -float(np.finfo(np.float32).max)
"""-FLT_MAX, where the originals' maxima start, in double nets too: what is not greater never wins."""


class Bins(NamedTuple):
    """The pixels of each bin, ends exclusive, clipped to the map: rows (R, PH), columns (R, PW)."""

    hstart: Ints
    hend: Ints
    wstart: Ints
    wend: Ints

    def areas(self) -> Ints:
        """Pixels in each bin (R, PH, PW), at least 1."""
        height, width = self.hend - self.hstart, self.wend - self.wstart
        areas: Ints = np.maximum(height, 1)[:, :, None] * np.maximum(width, 1)[:, None, :]
        return areas


class AxisSteps(NamedTuple):
    """How bins come to lie along one axis of the map, step by step, before they are clipped to it.

    extent (R,): the roi's length; length (R,): a bin's; edges (R, P + 1): where the bins meet, not rounded; start, end
    (R, P): each bin's own two edges, rounded to pixels where the layer does that.
    """

    extent: Array
    length: Array
    edges: Array
    start: Array
    end: Array


class RoiSteps(NamedTuple):
    """How rois come to lie on the map: x1, y1, x2, y2 (R, 4) after the first of two steps and after both; then each axis."""

    halfway: Array
    corners: Array
    h: AxisSteps
    w: AxisSteps


def clipped_bins(steps: RoiSteps, size: tuple[int, int]) -> Bins:
    """The bins, clipped to a map of size (H, W)."""
    h, w = steps.h, steps.w
    return Bins(h.start.clip(0, size[0]), h.end.clip(0, size[0]), w.start.clip(0, size[1]), w.end.clip(0, size[1]))


def width_problem(shape: tuple[int, ...]) -> str:
    """What is wrong with the shape of a rois array, or ""."""
    if len(shape) in (2, 4) and shape[1:] in ((5,), (5, 1, 1)):
        return ""
    return f"rois must have shape (R, 5) or (R, 5, 1, 1), got {shape}"


def rois_problem(rois: Array, images: int, spatial_scale: float) -> str:
    """What is wrong with the values of rois (R, 5) for a batch of that many images, or ""; names the first bad row."""
    if not math.isfinite(spatial_scale):
        return f"spatial_scale must be finite, got {spatial_scale}"
    corners = rois[:, 1:].astype(np.float64)
    for bad, text in (
        (~np.isfinite(corners).all(axis=1), "a coordinate is NaN or infinite"),
        (~(np.isfinite(rois[:, 0]) & (rois[:, 0] == np.trunc(rois[:, 0]))), "the batch index is not a whole number"),
        (~((rois[:, 0] >= 0) & (rois[:, 0] < images)), f"the batch index is out of range: the batch has {images} images"),
        (
            (np.abs(corners).max(axis=1, initial=0) * max(1.0, abs(spatial_scale)) > LIMIT),
            f"a coordinate is beyond {LIMIT:.0f} pixels of the image or the map (spatial_scale {spatial_scale:g})",
        ),
    ):
        if bad.any():
            row = int(bad.argmax())
            return f"roi {row} is {[float(v) for v in rois[row]]}: {text}"
    return ""


def checked(x: ArrayLike, rois: ArrayLike, spatial_scale: float) -> tuple[Array, Array]:
    """x (N, C, H, W) as float32 or float64, and rois as (R, 5) of the same type. Raises Error."""
    x = np.asarray(x)
    if x.dtype not in (np.float32, np.float64):
        x = x.astype(np.float32)
    if x.ndim != 4:
        raise Error(f"the feature map must have 4 axes (N, C, H, W), got shape {x.shape}")
    rois = np.asarray(rois, x.dtype)
    problem = width_problem(rois.shape) or rois_problem(rois.reshape(-1, 5), len(x), spatial_scale)
    if problem:
        raise Error(problem)
    return x, rois.reshape(-1, 5)


def batch_index(rois: Array) -> Ints:
    """The image of each roi: rois (R, 5) -> (R,)."""
    return rois[:, 0].astype(np.int64)


def round_half_away(values: Array) -> Array:
    """C's round(): halves go away from zero (NumPy's go to even)."""
    whole = np.trunc(values)
    return np.where(np.abs(values - whole) >= 0.5, whole + np.copysign(values.dtype.type(1), values), whole)


def bin_numbers(count: int, dtype: Any) -> Array:
    """0, 1, ..., count: the edges of count bins, (count + 1,)."""
    return np.arange(count + 1, dtype=dtype)


def add_at(index: Array, values: Array, size: int) -> NDArray[np.float64]:
    """Sums of values at each index: (size,) in float64; index -1 is dropped."""
    index, values = index.ravel(), values.ravel()
    used = index >= 0
    if not used.all():
        index, values = index[used], values[used]
    return np.bincount(index, values, size).astype(np.float64, copy=False)
