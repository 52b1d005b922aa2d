"""PSROIPooling: position-sensitive averages; each bin of the grid over a roi reads channels of its own.

    y[r, d, gh, gw] = mean x[n_r, (d * g + gh) * g + gw, h, w] over h in [hstart, hend), w in [wstart, wend)

Source: R-FCN (Dai et al. 2016), psroi_pooling_layer.cu of caffe-rfcn. Corners are rounded (halves away from zero)
before scaling, the end is one pixel further, the size is at least 0.1; bins are [floor, ceil), clipped to the map.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from minicaffe.blob import Blob
from minicaffe.blocks import Scratch
from minicaffe.cuda.roi import PositionSensitive

from .psroi_layer import GridPart, PSROILayer, check_channels, gradient_of, grid, run_parts
from .psroi_sums import bin_spans, spread_bins, sum_bins
from .roi_geometry import Array, AxisSteps, Bins, RoiSteps, batch_index, bin_numbers, checked, clipped_bins, round_half_away


class PSROIPooling(PSROILayer):
    """Position-sensitive average pooling over rois (see the module's formula).

    bottom: x (N, output_dim * group_size^2, H, W); rois (R, 5) = batch index, x1, y1, x2, y2 in image pixels.
    top: y (R, output_dim, group_size, group_size). An empty bin gives 0. Raises LayerError for another number of
    channels, output_dim or group_size 0, and bad rois.
    """

    type = "PSROIPooling"
    param_block = ("psroi_pooling_param",)
    forward_gpu = PSROILayer.forward_gpu
    backward_gpu = PSROILayer.backward_gpu

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.read_group(self.param.psroi_pooling_param, "psroi_pooling_param")
        self.kernels = PositionSensitive("psroi_pooling", self.dtype)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[...] = ps_roi_pool(bottom[0].data, self.rois(bottom), self.group_size, self.spatial_scale)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            dx = bottom[0].diff
            ps_roi_pool_backward(top[0].diff, self.rois(bottom), self.spatial_scale, dx.shape, out=dx)


def ps_roi_pool_bins(rois: Array, group: int, spatial_scale: float, size: tuple[int, int]) -> Bins:
    """The bins of rois (R, 5) on a map of size (H, W): rows and columns (R, G)."""
    return clipped_bins(ps_roi_pool_steps(rois, group, spatial_scale), size)


def ps_roi_pool_steps(rois: Array, group: int, spatial_scale: float) -> RoiSteps:
    """rois (R, 5) rounded to pixels with the end one further, then scaled, then cut into bins."""
    rounded = round_half_away(rois[:, 1:])
    rounded[:, 2:] += 1
    corners = rounded * rois.dtype.type(spatial_scale)
    w = _axis_steps(corners[:, 0], corners[:, 2], group)
    h = _axis_steps(corners[:, 1], corners[:, 3], group)
    return RoiSteps(rounded, corners, h, w)


def _axis_steps(first: Array, end: Array, group: int) -> AxisSteps:
    """The bins along one axis from the roi's edges (R,) on the map."""
    dtype = first.dtype.type
    extent = np.maximum(end - first, dtype(0.1))
    length = extent / dtype(group)
    edges = bin_numbers(group, dtype) * length[:, None] + first[:, None]
    start, stop = np.floor(edges[:, :-1]).astype(np.int64), np.ceil(edges[:, 1:]).astype(np.int64)
    return AxisSteps(extent, length, edges, start, stop)


def ps_roi_pool(x: ArrayLike, rois: ArrayLike, group_size: int, spatial_scale: float) -> Array:
    """x (N, D * G * G, H, W), rois (R, 5) -> averages (R, D, G, G)."""
    x, rois = checked(x, rois, spatial_scale)
    check_channels(x.shape[1], group_size)
    x, size = np.ascontiguousarray(x), (x.shape[2], x.shape[3])
    bins = ps_roi_pool_bins(rois, group_size, spatial_scale, size)
    areas, dim = bins.areas(), x.shape[1] // group_size**2
    y = np.zeros((len(rois), dim, group_size, group_size), x.dtype)

    def average(part: GridPart, scratch: Scratch) -> None:
        area = areas[part.rois, part.gh, part.columns].T
        sums = sum_bins(grid(x, group_size, part), bin_spans(bins, part, size), scratch).reshape(*area.shape, dim)
        sums /= area[..., None]
        y[:, :, part.gh, part.columns][part.rois] = sums.transpose(1, 2, 0)

    run_parts(average, batch_index(rois), group_size, 2 * 8 * x[:1].size)
    return y


def ps_roi_pool_backward(
    dy: Array, rois: ArrayLike, spatial_scale: float, x_shape: Sequence[int], *, out: Array | None = None
) -> Array:
    """dy (R, D, G, G), rois (R, 5) -> dx (N, D * G * G, H, W): dy / area to every pixel of its bin."""
    group, size = dy.shape[2], (x_shape[2], x_shape[3])
    rois = np.asarray(rois, dy.dtype).reshape(-1, 5)
    bins = ps_roi_pool_bins(rois, group, spatial_scale, size)
    share = dy / bins.areas()[:, None].astype(dy.dtype)
    dx = gradient_of(x_shape, dy.dtype, batch_index(rois), out)

    def spread(part: GridPart, scratch: Scratch) -> None:
        mine = share[:, :, part.gh, part.columns][part.rois].transpose(2, 0, 1)
        grid(dx, group, part)[...] = spread_bins(mine, bin_spans(bins, part, size), scratch).transpose(2, 0, 1)

    run_parts(spread, batch_index(rois), group, 2 * dx[:1].nbytes)
    return dx
