"""PSROIPooling: position-sensitive means. Each bin of the grid over a roi reads its own channels.

    y[r, d, gh, gw] = mean x[n_r, (d * g + gh) * g + gw, h, w] over h in [hstart, hend), w in [wstart, wend)

Corners are rounded (halves away from zero) before scaling, the end is one pixel further, and the size is at least 0.1. Bins are
[floor, ceil), clipped to the map. Sums are float64.

Source: R-FCN (Dai et al. 2016), psroi_pooling_layer.cu of caffe-rfcn.
"""

# PsRoiPool.plan cuts the bins. The definition is ps_roi_pool_by_definition.
#
# A bin's sum, and its transpose in backward, is a sum of rows of a channels-last map. A second map holds the sums of two
# neighbours in a row, which halves the number of terms. A bin's sum has no term but the bin's own pixels, so it loses no
# digits to the rest of the map, as differences of an integral image do. For 300 rois it is also faster than an integral
# image, whose prefix sums are written once and read twice.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.roi import PositionSensitive
from minicaffe.kernels import kernel
from minicaffe.layer import data_bytes
from minicaffe.layers.roi.operator import PositionSensitiveOperator
from minicaffe.layers.roi.psroi_layer import GridPart, PSROILayer, backward_in_parts, part_bytes, pool_in_parts
from minicaffe.layers.roi.roi_geometry import (
    AxisSteps,
    BinPlan,
    Ints,
    RoiPlan,
    at_least,
    cut_axis,
    cut_corners,
    round_half_away,
)
from minicaffe.layers.roi.row_sums import add_rows, items, longest_first, sum_rows
from minicaffe.threads import Scratch, get_num_threads

BLOCK = 256
"""Terms of a bin whose offsets one NumPy call computes."""

CHUNK = 2**18
"""Approximate number of terms that backward lists at a time."""


class Spans(NamedTuple):
    """The bins' first rows, heights and widths, (B,) each, on two maps of `pixels` rows for each grid position."""

    first: Ints
    height: Ints
    width: Ints
    pixels: int
    row: int

    def terms(self) -> Ints:
        """Return the number of terms of each bin (B,)."""
        return self.height * ((self.width + 1) // 2)


def bin_spans(plan: BinPlan, part: GridPart) -> Spans:
    """Return the bins of a part of the grid, one grid position after another."""
    (_, rois, gh, columns), bins, size = part, plan.places, plan.size
    top, bottom = bins.hstart[rois, gh], bins.hend[rois, gh]
    left, right = bins.wstart[rois, columns].T, bins.wend[rois, columns].T
    pixels = size[0] * size[1]
    first = np.arange(len(left))[:, None] * (2 * pixels) + top * size[1] + left  # (P, R)
    width = (right - left).clip(0)
    height = np.broadcast_to((bottom - top).clip(0), width.shape)
    return Spans(first.ravel(), height.ravel(), width.ravel(), pixels, size[1])


def sum_bins(x: Array, spans: Spans, scratch: Scratch) -> Array:
    """Return the sums (B, D) over the bins of x (D, P, H * W), in float64, in scratch."""
    dim, places, pixels = x.shape
    maps = scratch("maps", places, 2, pixels, dim, dtype=np.float64)
    maps[:, 0] = x.transpose(1, 2, 0)  # (P, H * W, D)
    with np.errstate(invalid="ignore"):
        # Pairs across the end of a row are computed too, but a bin reads only pairs inside it.
        np.add(maps[:, 0, :-1], maps[:, 0, 1:], out=maps[:, 1, :-1])
    order, having = longest_first(spans.terms())
    sums = scratch("of bins", len(order), dim, dtype=np.float64)
    ordered = sum_rows(maps.reshape(-1, dim), _terms(spans, order, having), having, len(order), scratch)
    items(sums)[order] = items(ordered)
    return sums


def bins_backward(dy: Array, spans: Spans, scratch: Scratch) -> Array:
    """Return (P, H * W, D), in scratch: dy (P, R, D) added to each pixel of its bin."""
    places, _, dim = dy.shape
    dy = np.ascontiguousarray(dy).reshape(len(spans.first), dim)
    maps = scratch("maps", places, 2, spans.pixels, dim, dtype=dy.dtype)
    maps[...] = 0
    for bins in _slices(spans.terms()):
        some = spans._replace(first=spans.first[bins], height=spans.height[bins], width=spans.width[bins])
        order, having = longest_first(some.terms())
        target = np.concatenate([order[:0], *_terms(some, order, having)])  # order[:0]: there may be no terms
        source = np.concatenate([order[:0], *(order[:n] for n in having)]) + bins.start
        add_rows(dy, source, target, maps.reshape(-1, dim), scratch)
    with np.errstate(invalid="ignore"):
        maps[:, 0] += maps[:, 1]  # a pair's dy goes to its first pixel ...
        maps[:, 0, 1:] += maps[:, 1, :-1]  # ... and to its second
    return maps[:, 0]


def listed_bytes(terms: int) -> int:
    """Return the bytes in which bins_backward lists this many terms: five integers each, about CHUNK terms at a time."""
    return 5 * 8 * min(terms, CHUNK)


def _slices(terms: Ints) -> list[slice]:
    """Return the bins (B,) in slices of about CHUNK terms."""
    ends = np.flatnonzero(np.diff(terms.cumsum() // CHUNK, append=-1)) + 1  # -1 makes the last bin end a slice
    return [slice(a, b) for a, b in pairwise([0, *ends.tolist()])]


def _terms(spans: Spans, order: Ints, having: Sequence[int]) -> Iterator[Ints]:
    """Yield, for each k, the rows of the k-th terms of the first having[k] bins in this order.

    The terms are pairs from the second map, then the last pixel of a row of odd length from the first.
    """
    # the type that take needs, on 32 bits too
    first, width = spans.first[order], spans.width[order].astype(np.intp, copy=False)
    widths = np.arange(int(width.max(initial=0)) + 1)
    pairs = np.maximum((widths + 1) // 2, 1)  # terms in a row of each width; at least 1, to avoid a division by 0
    for start in range(0, len(having), BLOCK):
        row, pair = np.divmod(np.arange(start, min(start + BLOCK, len(having)))[:, None], pairs)
        # The second map follows after `pixels` rows.
        offsets = row * spans.row + 2 * pair + np.where(2 * pair + 1 < widths, spans.pixels, 0)
        for n, offset in zip(having[start:], offsets):
            yield offset.take(width[:n]) + first[:n]


def ps_roi_pool_by_definition(  # noqa: PLR0913, PLR0917 - the arrays of a plan
    x: Array, rois: Ints, hstart: Ints, hend: Ints, wstart: Ints, wend: Ints, y: Array, gh: int, gw: int
) -> None:
    """Compute y (R, D, G, G) at grid position (gh, gw), for an image's rois.

    x (H, W, D or more): the image's maps for that position.
    """
    sums = np.empty(x.shape[2])  # float64
    for r in rois:
        sums[:] = 0
        for h in range(hstart[r, gh], hend[r, gh]):
            for w in range(wstart[r, gw], wend[r, gw]):
                pixel = x[h, w]
                for d in range(len(sums)):
                    sums[d] += pixel[d]
        area = max(hend[r, gh] - hstart[r, gh], 1) * max(wend[r, gw] - wstart[r, gw], 1)  # at least 1: an empty bin gives 0
        for d in range(y.shape[1]):
            y[r, d, gh, gw] = sums[d] / area


def ps_roi_pool_backward_by_definition(  # noqa: PLR0913, PLR0917 - the arrays of a plan
    dy: Array, rois: Ints, hstart: Ints, hend: Ints, wstart: Ints, wend: Ints, dx: Array, gh: int, gw: int
) -> None:
    """Add dy (R, D, G, G) / area to dx (H, W, D or more) at every pixel of its bin.

    dx is of grid position (gh, gw); rois are the image's.
    """
    each = np.zeros(dx.shape[2], dx.dtype)
    for r in rois:
        area = max(hend[r, gh] - hstart[r, gh], 1) * max(wend[r, gw] - wstart[r, gw], 1)
        for d in range(dy.shape[1]):
            each[d] = dy[r, d, gh, gw] / area
        for h in range(hstart[r, gh], hend[r, gh]):
            for w in range(wstart[r, gw], wend[r, gw]):
                pixel = dx[h, w]
                for d in range(len(each)):
                    pixel[d] += each[d]


@kernel
def ps_roi_pool(x: Array, plan: BinPlan, group: int, y: Array) -> None:
    """Write y (R, D, G, G): the means over the bins of x (N, D * G * G, H, W)."""
    areas = plan.places.areas()

    def means(maps: Array, part: GridPart, scratch: Scratch) -> Array:
        area = areas[part.rois, part.gh, part.columns].T
        sums = sum_bins(maps, bin_spans(plan, part), scratch).reshape(*area.shape, len(maps))
        sums /= area[..., None]  # an empty bin has sum 0 and area 1 or more
        return sums

    pool_in_parts(x, plan, y, 2 * 8 * x[:1].size, means)


@kernel
def ps_roi_pool_backward(dy: Array, plan: BinPlan, group: int, dx: Array) -> None:
    """Write dx (N, D * G * G, H, W) from dy (R, D, G, G)."""
    each = dy / plan.places.areas()[:, None].astype(dy.dtype)

    def back(mine: Array, part: GridPart, scratch: Scratch) -> Array:
        return bins_backward(mine, bin_spans(plan, part), scratch)

    backward_in_parts(each, plan, dx, 2 * dx[:1].nbytes, back)


@dataclass(frozen=True, kw_only=True)
class PsRoiPool(PositionSensitiveOperator):
    """Means over bins."""

    def plan(self, rois: Array, size: tuple[int, int]) -> BinPlan:
        """Return the plan of rois, which are rounded, their end moved one pixel on, then scaled and cut into bins."""
        rounded = round_half_away(rois[:, 1:])
        rounded[:, 2:] += 1  # before scaling, the end moves one past the last pixel
        corners = rounded * rois.dtype.type(self.spatial_scale)

        def cut(first: Array, end: Array, count: int) -> AxisSteps:
            return cut_axis(first, at_least(0.1, end - first), count).whole()

        steps = cut_corners(rounded, corners, (self.group_size, self.group_size), cut)
        return RoiPlan(rois, size, steps, steps.clipped(size))

    def pool(self, x: Array, plan: BinPlan, y: Array | None, argmax: NDArray[np.int32] | None) -> None:
        assert y is not None
        ps_roi_pool(x, plan, self.group_size, y)

    def pool_backward(self, dy: Array, plan: BinPlan, argmax: Array | None, dx: Array) -> None:
        ps_roi_pool_backward(dy, plan, self.group_size, dx)

    def working_bytes(self, x: Blob, y: Blob, *, train: bool, backward: bool) -> int:
        """Return the bytes. Backward's are of rois that cover the whole map.

        They are dy / area, and on each thread a part's maps and the terms listed at a time.
        """
        forward = part_bytes(x, y, 2 * 8, 3 * 8)
        if not backward:
            return forward
        (rois, _, group, _), (height, width) = y.shape, x.shape[2:]
        terms = rois * group * (height // group + 1) * (width // group + 1) // 2
        maps = part_bytes(x, y, 2 * x.dtype.itemsize, 0)
        return max(forward, data_bytes([y]) + maps + get_num_threads() * listed_bytes(terms))

    def gpu_kernels(self, dtype: np.dtype[Any]) -> PositionSensitive:
        return PositionSensitive("psroi_pooling", dtype)


class PSROIPooling(PSROILayer):
    """Position-sensitive average pooling over rois.

    bottom: x (N, output_dim * group_size^2, H, W); rois (R, 5) = batch index, x1, y1, x2, y2 in image pixels.
    top: y (R, output_dim, group_size, group_size). An empty bin gives 0. Raises LayerError for another number of
    channels, output_dim or group_size 0, and bad rois.
    """

    type = "PSROIPooling"
    param_block = ("psroi_pooling_param",)

    uses_kernels = ((ps_roi_pool,), (ps_roi_pool_backward,))

    kind = PsRoiPool
    operator: PsRoiPool
