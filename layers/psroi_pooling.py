"""PSROIPooling: position-sensitive averages; each bin of the grid over a roi reads channels of its own.

    y[r, d, gh, gw] = mean x[n_r, (d * g + gh) * g + gw, h, w] over h in [hstart, hend), w in [wstart, wend)

Source: R-FCN (Dai et al. 2016), psroi_pooling_layer.cu of caffe-rfcn. Corners are rounded (halves away from zero)
before scaling, the end is one pixel further, the size is at least 0.1; bins are [floor, ceil), clipped to the map:
ps_roi_pool_plan. The definition is the loop of ps_roi_pool_by_definition.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from minicaffe.blob import Blob
from minicaffe.blocks import Scratch
from minicaffe.cuda.roi import PositionSensitive
from minicaffe.layer import data_bytes
from minicaffe.threads import get_num_threads

from .roi.psroi_layer import GridPart, PSROILayer, backward_in_parts, check_channels, part_bytes, pool_in_parts
from .roi.psroi_sums import bin_spans, bins_backward, listed_bytes, sum_bins
from .roi.roi_geometry import (
    Array,
    AxisSteps,
    BinPlan,
    RoiPlan,
    at_least,
    checked,
    cut_axis,
    cut_corners,
    round_half_away,
)


class PSROIPooling(PSROILayer):
    """Position-sensitive average pooling over rois (see the module's formula).

    bottom: x (N, output_dim * group_size^2, H, W); rois (R, 5) = batch index, x1, y1, x2, y2 in image pixels.
    top: y (R, output_dim, group_size, group_size). An empty bin gives 0. Raises LayerError for another number of
    channels, output_dim or group_size 0, and bad rois.
    """

    type = "PSROIPooling"
    param_block = ("psroi_pooling_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.read_group(self.param.psroi_pooling_param, "psroi_pooling_param")
        self.kernels = PositionSensitive("psroi_pooling", self.dtype)

    def working_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> int:
        """Backward: of rois that have the whole map."""
        forward = part_bytes(bottom[0], top[0], 2 * 8, 3 * 8)
        if propagate_down is None:
            return forward
        return max(forward, pool_bins_backward_bytes(bottom[0], top[0]))

    def plan_rois(self, rois: Array, size: tuple[int, int]) -> BinPlan:
        return ps_roi_pool_plan(rois, self.group_size, self.spatial_scale, size)

    def pool_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob], plan: BinPlan) -> None:
        pool_bins(bottom[0].read_data(), plan, top[0].data)

    def pool_backward_cpu(self, top: Sequence[Blob], bottom: Sequence[Blob], plan: BinPlan) -> None:
        pool_bins_backward(top[0].read_diff(), plan, bottom[0].diff)


def ps_roi_pool_plan(rois: Array, group: int, spatial_scale: float, size: tuple[int, int]) -> BinPlan:
    """rois (R, 5) rounded to pixels with the end one further, then scaled, then cut into G x G bins on a map of (H, W)."""
    rounded = round_half_away(rois[:, 1:])
    rounded[:, 2:] += 1
    corners = rounded * rois.dtype.type(spatial_scale)

    def cut(first: Array, end: Array, count: int) -> AxisSteps:
        return cut_axis(first, at_least(0.1, end - first), count).whole()

    steps = cut_corners(rounded, corners, (group, group), cut)
    return RoiPlan(rois, size, steps, steps.clipped(size))


def ps_roi_pool_by_definition(x: Array, plan: BinPlan) -> Array:
    """x (N, D * G * G, H, W) -> averages (R, D, G, G)."""
    rois, group, _ = plan.shape
    y = np.zeros((rois, x.shape[1] // group**2, group, group), x.dtype)
    for r, d, gh, gw in np.ndindex(y.shape):
        rows, columns = plan.places.of(r, gh, gw)
        if rows and columns:
            cells = x[plan.images[r], (d * group + gh) * group + gw, rows.start : rows.stop, columns.start : columns.stop]
            y[r, d, gh, gw] = cells.mean(dtype=np.float64)
    return y


def ps_roi_pool_backward_by_definition(dy: Array, plan: BinPlan, dx: Array) -> None:
    """dx (N, D * G * G, H, W) += dy (R, D, G, G) / area at every pixel of its bin."""
    group = plan.shape[1]
    for r, d, gh, gw in np.ndindex(dy.shape):
        rows, columns = plan.places.of(r, gh, gw)
        cells = dx[plan.images[r], (d * group + gh) * group + gw, rows.start : rows.stop, columns.start : columns.stop]
        cells += dy[r, d, gh, gw] / max(cells.size, 1)


def ps_roi_pool(x: ArrayLike, rois: ArrayLike, group_size: int, spatial_scale: float) -> Array:
    """x (N, D * G * G, H, W), rois (R, 5) -> averages (R, D, G, G)."""
    x, rois = checked(x, rois, spatial_scale)
    check_channels(x.shape[1], group_size)
    y = np.empty((len(rois), x.shape[1] // group_size**2, group_size, group_size), x.dtype)
    pool_bins(x, ps_roi_pool_plan(rois, group_size, spatial_scale, x.shape[2:]), y)
    return y


def ps_roi_pool_backward(
    dy: Array, rois: ArrayLike, spatial_scale: float, x_shape: Sequence[int], *, out: Array | None = None
) -> Array:
    """dy (R, D, G, G), rois (R, 5) -> dx (N, D * G * G, H, W): dy / area to every pixel of its bin."""
    rois, size = np.asarray(rois, dy.dtype).reshape(-1, 5), (x_shape[2], x_shape[3])
    dx = np.empty(tuple(x_shape), dy.dtype) if out is None else out
    pool_bins_backward(dy, ps_roi_pool_plan(rois, dy.shape[2], spatial_scale, size), dx)
    return dx


def pool_bins(x: Array, plan: BinPlan, y: Array) -> None:
    """x (N, D * G * G, H, W) -> y (R, D, G, G)."""
    areas = plan.places.areas()

    def means(maps: Array, part: GridPart, scratch: Scratch) -> Array:
        area = areas[part.rois, part.gh, part.columns].T
        sums = sum_bins(maps, bin_spans(plan, part), scratch).reshape(*area.shape, len(maps))
        sums /= area[..., None]
        return sums

    pool_in_parts(x, plan, y, 2 * 8 * x[:1].size, means)


def pool_bins_backward_bytes(dx: Blob, dy: Blob) -> int:
    """What pool_bins_backward takes: dy / area, and on each thread a part's maps and the terms that are listed at a time."""
    (rois, _, group, _), (height, width) = dy.shape, dx.shape[2:]
    terms = rois * group * (height // group + 1) * (width // group + 1) // 2
    maps = part_bytes(dx, dy, 2 * dx.dtype.itemsize, 0)
    return data_bytes([dy]) + maps + get_num_threads() * listed_bytes(terms)


def pool_bins_backward(dy: Array, plan: BinPlan, dx: Array) -> None:
    """dy (R, D, G, G) -> dx (N, D * G * G, H, W)."""
    each = dy / plan.places.areas()[:, None].astype(dy.dtype)
    size = 2 * dx[:1].nbytes
    backward_in_parts(each, plan, dx, size, lambda mine, part, scratch: bins_backward(mine, bin_spans(plan, part), scratch))
