"""PSROIPooling: position-sensitive averages; each bin of the grid over a roi reads channels of its own.

    y[r, d, gh, gw] = mean x[n_r, (d * g + gh) * g + gw, h, w] over h in [hstart, hend), w in [wstart, wend)

Source: R-FCN (Dai et al. 2016), psroi_pooling_layer.cu of caffe-rfcn. Corners are rounded (halves away from zero)
before scaling, the end is one pixel further, the size is at least 0.1; bins are [floor, ceil), clipped to the map:
PsRoiPool.plan. The definition is the loop of ps_roi_pool_by_definition; compiled, it is the fast way, forward and backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import loops
from minicaffe.blob import Array, Blob
from minicaffe.blocks import Scratch
from minicaffe.cuda.roi import PositionSensitive
from minicaffe.layer import data_bytes
from minicaffe.loops import loop
from minicaffe.threads import get_num_threads

from .roi.channel_blocks import PLACE_TYPES, Part, add_to_places, pool_places, read_only, read_place, write_place
from .roi.operator import PositionSensitiveOperator
from .roi.psroi_layer import GridPart, PSROILayer, backward_in_parts, part_bytes, pool_in_parts
from .roi.psroi_sums import bin_spans, bins_backward, listed_bytes, sum_bins
from .roi.roi_geometry import BIN_TYPES, AxisSteps, BinPlan, Ints, RoiPlan, at_least, cut_axis, cut_corners, round_half_away


@loop(f"T[:,:,::1], int64[::1], {BIN_TYPES}, T[:,:,:,::1], int64, int64")
def ps_roi_pool_by_definition(  # noqa: PLR0913, PLR0917 - a compiled loop takes arrays
    x: Array, rois: Ints, hstart: Ints, hend: Ints, wstart: Ints, wend: Ints, y: Array, gh: int, gw: int
) -> None:
    """x (H, W, D or more), an image's maps for the place (gh, gw) in the grid -> y (R, D, G, G) there, at the image's rois."""
    sums = np.empty(x.shape[2])  # float64
    for r in rois:
        sums[:] = 0
        for h in range(hstart[r, gh], hend[r, gh]):
            for w in range(wstart[r, gw], wend[r, gw]):
                pixel = x[h, w]
                for d in range(len(sums)):
                    sums[d] += pixel[d]
        area = max(hend[r, gh] - hstart[r, gh], 1) * max(wend[r, gw] - wstart[r, gw], 1)  # 1: an empty bin is 0
        for d in range(y.shape[1]):
            y[r, d, gh, gw] = sums[d] / area


@loop(f"Array(T, 4, 'C', True), int64[::1], {BIN_TYPES}, T[:,:,::1], int64, int64")
def ps_roi_pool_backward_by_definition(  # noqa: PLR0913, PLR0917 - a compiled loop takes arrays
    dy: Array, rois: Ints, hstart: Ints, hend: Ints, wstart: Ints, wend: Ints, dx: Array, gh: int, gw: int
) -> None:
    """dx (H, W, D or more), of the place (gh, gw), += dy (R, D, G, G) / area at every pixel of its bin, of the image's rois."""
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


@loop(f"{PLACE_TYPES}, Array(T, 3, 'C', True), int64[::1], {BIN_TYPES}, T[:,:,:,::1]")
def ps_roi_pool_places(  # noqa: PLR0913, PLR0917 - a compiled loop takes arrays
    first: int, last: int, pixels: Array, x: Array, rois: Ints, h0: Ints, h1: Ints, w0: Ints, w1: Ints, y: Array
) -> None:
    """x (D, G * G, H * W), an image's maps -> y (R, D, G, G) at its rois, in some places of the grid."""
    for place in range(first, last):
        read_place(x, pixels, place)
        ps_roi_pool_by_definition(pixels, rois, h0, h1, w0, w1, y, place // y.shape[2], place % y.shape[2])


@loop(f"{PLACE_TYPES}, Array(T, 4, 'C', True), int64[::1], {BIN_TYPES}, T[:,:,::1]")
def ps_roi_pool_places_backward(  # noqa: PLR0913, PLR0917 - a compiled loop takes arrays
    first: int, last: int, pixels: Array, dy: Array, rois: Ints, h0: Ints, h1: Ints, w0: Ints, w1: Ints, dx: Array
) -> None:
    """dx (D, G * G, H * W), in some places of the grid, = the sums of dy (R, D, G, G) of the image's rois."""
    for place in range(first, last):
        pixels[:] = 0
        ps_roi_pool_backward_by_definition(dy, rois, h0, h1, w0, w1, pixels, place // dy.shape[2], place % dy.shape[2])
        write_place(pixels, dx, place)


@dataclass(frozen=True, kw_only=True)
class PsRoiPool(PositionSensitiveOperator):
    """Means over bins."""

    def plan(self, rois: Array, size: tuple[int, int]) -> BinPlan:
        """rois rounded to pixels with the end one further, then scaled, then cut into bins."""
        rounded = round_half_away(rois[:, 1:])
        rounded[:, 2:] += 1  # the end is one past the last pixel, before scaling
        corners = rounded * rois.dtype.type(self.spatial_scale)

        def cut(first: Array, end: Array, count: int) -> AxisSteps:
            return cut_axis(first, at_least(0.1, end - first), count).whole()

        steps = cut_corners(rounded, corners, (self.group_size, self.group_size), cut)
        return RoiPlan(rois, size, steps, steps.clipped(size))

    def pool(self, x: Array, plan: BinPlan, y: Array | None, argmax: NDArray[np.int32] | None) -> None:
        assert y is not None
        if loops.compiled():

            def pool(part: Part, maps: Array, rois: Ints) -> None:
                ps_roi_pool_places(*part, maps, rois, *plan.places, y)

            pool_places(pool, x, plan.images, self.group_size)
            return
        areas = plan.places.areas()

        def means(maps: Array, part: GridPart, scratch: Scratch) -> Array:
            area = areas[part.rois, part.gh, part.columns].T
            sums = sum_bins(maps, bin_spans(plan, part), scratch).reshape(*area.shape, len(maps))
            sums /= area[..., None]  # an empty bin: sum 0, area at least 1
            return sums

        pool_in_parts(x, plan, y, 2 * 8 * x[:1].size, means)

    def pool_backward(self, dy: Array, plan: BinPlan, argmax: Array | None, dx: Array) -> None:
        if loops.compiled():
            given = read_only(dy)

            def add(part: Part, maps: Array, rois: Ints) -> None:
                ps_roi_pool_places_backward(*part, given, rois, *plan.places, maps)

            add_to_places(add, dx, plan.images, self.group_size)
            return
        each = dy / plan.places.areas()[:, None].astype(dy.dtype)

        def back(mine: Array, part: GridPart, scratch: Scratch) -> Array:
            return bins_backward(mine, bin_spans(plan, part), scratch)

        backward_in_parts(each, plan, dx, 2 * dx[:1].nbytes, back)

    def working_bytes(self, x: Blob, y: Blob, *, train: bool, backward: bool) -> int:
        """Backward, of rois that have the whole map: dy / area, and on each thread a part's maps and the terms listed at a
        time."""
        forward = part_bytes(x, y, 2 * 8, 3 * 8)
        if not backward:
            return forward
        (rois, _, group, _), (height, width) = y.shape, x.shape[2:]
        terms = rois * group * (height // group + 1) * (width // group + 1) // 2
        maps = part_bytes(x, y, 2 * x.dtype.itemsize, 0)
        return max(forward, data_bytes([y]) + maps + get_num_threads() * listed_bytes(terms))

    def kernels(self, dtype: np.dtype[Any]) -> PositionSensitive:
        return PositionSensitive("psroi_pooling", dtype)


class PSROIPooling(PSROILayer):
    """Position-sensitive average pooling over rois (see the module's formula).

    bottom: x (N, output_dim * group_size^2, H, W); rois (R, 5) = batch index, x1, y1, x2, y2 in image pixels.
    top: y (R, output_dim, group_size, group_size). An empty bin gives 0. Raises LayerError for another number of
    channels, output_dim or group_size 0, and bad rois.
    """

    type = "PSROIPooling"
    param_block = ("psroi_pooling_param",)

    loops = ([ps_roi_pool_places], [ps_roi_pool_places_backward])

    kind = PsRoiPool
    operator: PsRoiPool
