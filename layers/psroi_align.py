"""PSROIAlign: position-sensitive averages of bilinear samples.

    y[r, d, gh, gw] = 1 / n^2 * sum of n * n bilinear samples of x[n_r, (d * g + gh) * g + gw]

Source: the PSROIAlign fork of R-FCN (afantideng/R-FCN-PSROIAlign), psroi_align_layer.cu. Corners are not rounded, the
end is one pixel further, the size is at least 0.1; bins are clipped to [0, H - 1]; samples lie at (unclipped bin size) /
(n + 1) * 1..n from the clipped start; those at or past the bin's end are left out, and the divisor stays n^2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from minicaffe.blob import Blob
from minicaffe.blocks import Scratch
from minicaffe.cuda.roi import PositionSensitive

from .psroi_bilinear import grid_taps, pool_part, spread_part
from .psroi_layer import GridPart, PSROILayer, check_channels, gradient_of, grid, run_parts
from .roi_geometry import Array, AxisSteps, RoiSteps, batch_index, bin_numbers, checked
from .roi_samples import Samples


class PSROIAlign(PSROILayer):
    """Position-sensitive average of bilinear samples (see the module's formula).

    bottom: x (N, output_dim * group_size^2, H, W); rois (R, 5) = batch index, x1, y1, x2, y2 in image pixels.
    top: y (R, output_dim, group_size, group_size). An empty bin gives 0. Raises LayerError for another number of
    channels, output_dim, group_size or sample_num 0, and bad rois.
    """

    type = "PSROIAlign"
    param_block = ("psroi_align_param",)
    forward_gpu = PSROILayer.forward_gpu
    backward_gpu = PSROILayer.backward_gpu

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.psroi_align_param
        self.read_group(param, "psroi_align_param")
        self.sample_num = self.read_positive(param, "psroi_align_param", "sample_num")
        self.check_samples(self.sample_num, "psroi_align_param.sample_num")
        self.kernels = PositionSensitive("psroi_align", self.dtype, self.sample_num)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        rois = self.rois(bottom)
        top[0].data[...] = ps_roi_align(bottom[0].data, rois, self.group_size, self.spatial_scale, self.sample_num)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            rois, shape = self.rois(bottom), bottom[0].shape
            ps_roi_align_backward(top[0].diff, rois, self.spatial_scale, shape, self.sample_num, out=bottom[0].diff)


def ps_roi_align_samples(rois: Array, group: int, spatial_scale: float, size: tuple[int, int], sample_num: int) -> Samples:
    """The samples of rois (R, 5) on a map of size (H, W): h and w (R, G, sample_num)."""
    steps = ps_roi_align_steps(rois, group, spatial_scale)
    h, w = _axis_samples(steps.h, size[0], sample_num), _axis_samples(steps.w, size[1], sample_num)
    return Samples(h, w, np.full(len(rois), sample_num**2, rois.dtype))


def ps_roi_align_steps(rois: Array, group: int, spatial_scale: float) -> RoiSteps:
    """rois (R, 5) with the end one pixel further, then scaled, then cut into bins; nothing is rounded."""
    longer = rois[:, 1:].copy()
    longer[:, 2:] += 1
    corners = longer * rois.dtype.type(spatial_scale)
    w = _axis_steps(corners[:, 0], corners[:, 2], group)
    h = _axis_steps(corners[:, 1], corners[:, 3], group)
    return RoiSteps(longer, corners, h, w)


def _axis_steps(first: Array, end: Array, group: int) -> AxisSteps:
    """The bins along one axis from the roi's edges (R,) on the map."""
    dtype = first.dtype.type
    extent = np.maximum(end - first, dtype(0.1))
    length = extent / dtype(group)
    edges = bin_numbers(group, dtype) * length[:, None] + first[:, None]
    return AxisSteps(extent, length, edges, edges[:, :-1], edges[:, 1:])


def _axis_samples(steps: AxisSteps, size: int, sample_num: int) -> Array:
    """Places (R, group, sample_num) along an axis of that size; NaN at or past a bin's end."""
    dtype = steps.length.dtype.type
    start, end = steps.start.clip(0, max(size - 1, 0)), steps.end.clip(0, max(size - 1, 0))
    step = steps.length / dtype(sample_num + 1)
    places = start[:, :, None] + bin_numbers(sample_num, dtype)[1:] * step[:, None, None]
    kept: Array = np.where(places < end[:, :, None], places, dtype(np.nan))
    return kept


def ps_roi_align(x: ArrayLike, rois: ArrayLike, group_size: int, spatial_scale: float, sample_num: int = 2) -> Array:
    """x (N, D * G * G, H, W), rois (R, 5) -> averages (R, D, G, G)."""
    x, rois = checked(x, rois, spatial_scale)
    check_channels(x.shape[1], group_size)
    x, size = np.ascontiguousarray(x), (x.shape[2], x.shape[3])
    taps = grid_taps(ps_roi_align_samples(rois, group_size, spatial_scale, size, sample_num), size)
    y = np.zeros((len(rois), x.shape[1] // group_size**2, group_size, group_size), x.dtype)

    def average(part: GridPart, scratch: Scratch) -> None:
        means = pool_part(grid(x, group_size, part), taps.of(part, size[0] * size[1]), scratch)
        y[:, :, part.gh, part.columns][part.rois] = means.transpose(1, 2, 0)

    run_parts(average, batch_index(rois), group_size, x[:1].nbytes)
    return y


def ps_roi_align_backward(
    dy: Array, rois: ArrayLike, spatial_scale: float, x_shape: Sequence[int], sample_num: int = 2, *, out: Array | None = None
) -> Array:
    """dy (R, D, G, G), rois (R, 5) -> dx (N, D * G * G, H, W): each dy to the pixels its samples read."""
    group, size = dy.shape[2], (x_shape[2], x_shape[3])
    rois = np.asarray(rois, dy.dtype).reshape(-1, 5)
    taps = grid_taps(ps_roi_align_samples(rois, group, spatial_scale, size, sample_num), size)
    dx = gradient_of(x_shape, dy.dtype, batch_index(rois), out)

    def spread(part: GridPart, scratch: Scratch) -> None:
        mine = dy[:, :, part.gh, part.columns][part.rois].transpose(2, 0, 1)
        maps = spread_part(mine, taps.of(part, size[0] * size[1]), size[0] * size[1], scratch)
        grid(dx, group, part)[...] = maps.transpose(2, 0, 1)

    run_parts(spread, batch_index(rois), group, dx[:1].nbytes)
    return dx
