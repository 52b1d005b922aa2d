"""PSROIAlign: position-sensitive averages of bilinear samples.

    y[r, d, gh, gw] = 1 / n^2 * sum of n * n bilinear samples of x[n_r, (d * g + gh) * g + gw]

Source: the PSROIAlign fork of R-FCN (afantideng/R-FCN-PSROIAlign), psroi_align_layer.cu. Corners are not rounded, the
end is one pixel further, the size is at least 0.1; bins are clipped to [0, H - 1]; samples lie at (unclipped bin size) /
(n + 1) * 1..n from the clipped start; those at or past the bin's end are left out, and the divisor stays n^2:
ps_roi_align_plan. The definition is the loop of ps_roi_align_by_definition.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from minicaffe.blob import Blob
from minicaffe.cuda.roi import PositionSensitive
from minicaffe.threads import get_num_threads

from .roi.psroi_bilinear import CHUNK, grid_taps, part_backward, pool_part
from .roi.psroi_layer import PSROILayer, backward_in_parts, check_channels, part_bytes, pool_in_parts
from .roi.roi_geometry import Array, AxisSteps, RoiPlan, at_least, checked, cut_axis, cut_corners
from .roi.roi_samples import SamplePlan, Samples, mean_backward_by_definition, mean_by_definition


class PSROIAlign(PSROILayer):
    """Position-sensitive average of bilinear samples (see the module's formula).

    bottom: x (N, output_dim * group_size^2, H, W); rois (R, 5) = batch index, x1, y1, x2, y2 in image pixels.
    top: y (R, output_dim, group_size, group_size). An empty bin gives 0. Raises LayerError for another number of
    channels, output_dim, group_size or sample_num 0, and bad rois.
    """

    type = "PSROIAlign"
    param_block = ("psroi_align_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.psroi_align_param
        self.read_group(param, "psroi_align_param")
        self.sample_num = self.read_positive(param, "psroi_align_param", "sample_num")
        self.check_samples(self.sample_num, "psroi_align_param.sample_num")
        self.kernels = PositionSensitive("psroi_align", self.dtype, self.sample_num)

    def working_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> int:
        x, y = bottom[0], top[0]
        samples, size = 2 * self.sample_num, x.dtype.itemsize
        forward = part_bytes(x, y, size, (2 * samples + 3) * size)
        if propagate_down is None:
            return forward
        terms = samples**2 * y.shape[0] * y.shape[1] * self.group_size * size
        return max(forward, part_bytes(x, y, size, 0) + get_num_threads() * 3 * min(terms, CHUNK))

    def plan_rois(self, rois: Array, size: tuple[int, int]) -> SamplePlan:
        return ps_roi_align_plan(rois, self.group_size, self.spatial_scale, size, self.sample_num)

    def pool_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob], plan: SamplePlan) -> None:
        pool_samples(bottom[0].read_data(), plan, top[0].data)

    def pool_backward_cpu(self, top: Sequence[Blob], bottom: Sequence[Blob], plan: SamplePlan) -> None:
        pool_samples_backward(top[0].read_diff(), plan, bottom[0].diff)


def ps_roi_align_plan(rois: Array, group: int, spatial_scale: float, size: tuple[int, int], sample_num: int) -> SamplePlan:
    """rois (R, 5) with the end one pixel further, then scaled, then cut into G x G bins on a map of size (H, W), and their
    samples; nothing is rounded."""
    longer = rois[:, 1:].copy()
    longer[:, 2:] += 1
    corners = longer * rois.dtype.type(spatial_scale)
    steps = cut_corners(
        longer, corners, (group, group), lambda first, end, count: cut_axis(first, at_least(0.1, end - first), count)
    )
    h, w = _axis_samples(steps.h, size[0], sample_num), _axis_samples(steps.w, size[1], sample_num)
    return RoiPlan(rois, size, steps, Samples(h, w, np.full(len(rois), sample_num**2, rois.dtype)))


def _axis_samples(steps: AxisSteps, size: int, sample_num: int) -> Array:
    """Places (R, group, sample_num) along an axis of that size; NaN at or past a bin's end."""
    dtype = steps.length.dtype.type
    start, end = steps.start.clip(0, max(size - 1, 0)), steps.end.clip(0, max(size - 1, 0))
    step = steps.length / dtype(sample_num + 1)
    places = start[:, :, None] + np.arange(1, sample_num + 1, dtype=dtype) * step[:, None, None]
    kept: Array = np.where(places < end[:, :, None], places, dtype(np.nan))
    return kept


def ps_roi_align_by_definition(x: Array, plan: SamplePlan) -> Array:
    """x (N, D * G * G, H, W) -> averages (R, D, G, G)."""
    rois, group, _ = plan.shape
    y = np.zeros((rois, x.shape[1] // group**2, group, group), x.dtype)
    for r, d, gh, gw in np.ndindex(y.shape):
        y[r, d, gh, gw] = mean_by_definition(x[plan.images[r], (d * group + gh) * group + gw], plan, r, gh, gw)
    return y


def ps_roi_align_backward_by_definition(dy: Array, plan: SamplePlan, dx: Array) -> None:
    """dx (N, D * G * G, H, W) += dy (R, D, G, G) at the pixels that the samples read."""
    group = plan.shape[1]
    for r, d, gh, gw in np.ndindex(dy.shape):
        channel = (d * group + gh) * group + gw
        mean_backward_by_definition(dy[r, d, gh, gw], dx[plan.images[r], channel], plan, r, gh, gw)


def ps_roi_align(x: ArrayLike, rois: ArrayLike, group_size: int, spatial_scale: float, sample_num: int = 2) -> Array:
    """x (N, D * G * G, H, W), rois (R, 5) -> averages (R, D, G, G)."""
    x, rois = checked(x, rois, spatial_scale)
    check_channels(x.shape[1], group_size)
    y = np.empty((len(rois), x.shape[1] // group_size**2, group_size, group_size), x.dtype)
    pool_samples(x, ps_roi_align_plan(rois, group_size, spatial_scale, x.shape[2:], sample_num), y)
    return y


def ps_roi_align_backward(
    dy: Array, rois: ArrayLike, spatial_scale: float, x_shape: Sequence[int], sample_num: int = 2, *, out: Array | None = None
) -> Array:
    """dy (R, D, G, G), rois (R, 5) -> dx (N, D * G * G, H, W): each dy to the pixels its samples read."""
    rois, size = np.asarray(rois, dy.dtype).reshape(-1, 5), (x_shape[2], x_shape[3])
    dx = np.empty(tuple(x_shape), dy.dtype) if out is None else out
    pool_samples_backward(dy, ps_roi_align_plan(rois, dy.shape[2], spatial_scale, size, sample_num), dx)
    return dx


def pool_samples(x: Array, plan: SamplePlan, y: Array) -> None:
    """x (N, D * G * G, H, W) -> y (R, D, G, G)."""
    taps, pixels = grid_taps(plan), plan.size[0] * plan.size[1]
    pool_in_parts(x, plan, y, x[:1].nbytes, lambda maps, part, scratch: pool_part(maps, taps.of(part, pixels), scratch))


def pool_samples_backward(dy: Array, plan: SamplePlan, dx: Array) -> None:
    """dy (R, D, G, G) -> dx (N, D * G * G, H, W)."""
    taps, pixels = grid_taps(plan), plan.size[0] * plan.size[1]
    backward_in_parts(
        dy, plan, dx, dx[:1].nbytes, lambda mine, part, scratch: part_backward(mine, taps.of(part, pixels), pixels, scratch)
    )
