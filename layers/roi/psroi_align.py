"""PSROIAlign: position-sensitive means of bilinear samples.

    y[r, d, gh, gw] = 1 / n^2 * sum of n * n bilinear samples of x[n_r, (d * g + gh) * g + gw]

Corners are not rounded, the end is one pixel further, and the size is at least 0.1. Bins are clipped to [0, H - 1]. Samples are
at (unclipped bin size) / (n + 1) * 1..n from the clipped start. Samples at or past the bin's end are left out, but the divisor
stays n^2.

Source: the PSROIAlign fork of R-FCN (afantideng/R-FCN-PSROIAlign), psroi_align_layer.cu.
"""

# PsRoiAlign.plan places the samples. The definition is means_by_definition in roi_samples.py.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.roi import PositionSensitive
from minicaffe.kernels import kernel
from minicaffe.layers.roi.psroi_layer import CHUNK, grid_taps, part_backward, pool_part
from minicaffe.threads import Scratch, get_num_threads

from .operator import PositionSensitiveOperator
from .psroi_layer import GridPart, PSROILayer, backward_in_parts, part_bytes, pool_in_parts
from .roi_geometry import AxisSteps, RoiPlan, at_least, cut_axis, cut_corners
from .roi_samples import SamplePlan, Samples


@kernel
def ps_roi_align(x: Array, plan: SamplePlan, group: int, y: Array) -> None:
    """Write y (R, D, G, G): the means of the samples of x (N, D * G * G, H, W)."""
    taps, pixels = grid_taps(plan), plan.size[0] * plan.size[1]
    pool_in_parts(x, plan, y, x[:1].nbytes, lambda maps, part, scratch: pool_part(maps, taps.of(part, pixels), scratch))


@kernel
def ps_roi_align_backward(dy: Array, plan: SamplePlan, group: int, dx: Array) -> None:
    """Write dx (N, D * G * G, H, W) from dy (R, D, G, G)."""
    taps, pixels = grid_taps(plan), plan.size[0] * plan.size[1]

    def back(mine: Array, part: GridPart, scratch: Scratch) -> Array:
        return part_backward(mine, taps.of(part, pixels), pixels, group, scratch)

    backward_in_parts(dy, plan, dx, dx[:1].nbytes, back)


@dataclass(frozen=True, kw_only=True)
class PsRoiAlign(PositionSensitiveOperator):
    """Means of sample_num^2 samples."""

    sample_num: int = 2

    def plan(self, rois: Array, size: tuple[int, int]) -> SamplePlan:
        """Return the plan of rois, whose end is moved one pixel on before they are scaled and cut into bins.

        Nothing is rounded.
        """
        longer = rois[:, 1:].copy()
        longer[:, 2:] += 1
        corners = longer * rois.dtype.type(self.spatial_scale)

        def cut(first: Array, end: Array, count: int) -> AxisSteps:
            return cut_axis(first, at_least(0.1, end - first), count)

        steps = cut_corners(longer, corners, (self.group_size, self.group_size), cut)
        h, w = _axis_samples(steps.h, size[0], self.sample_num), _axis_samples(steps.w, size[1], self.sample_num)
        return RoiPlan(rois, size, steps, Samples(h, w, np.full(len(rois), self.sample_num**2, rois.dtype)))

    def pool(self, x: Array, plan: SamplePlan, y: Array | None, argmax: NDArray[np.int32] | None) -> None:
        assert y is not None
        ps_roi_align(x, plan, self.group_size, y)

    def pool_backward(self, dy: Array, plan: SamplePlan, argmax: Array | None, dx: Array) -> None:
        ps_roi_align_backward(dy, plan, self.group_size, dx)

    def working_bytes(self, x: Blob, y: Blob, *, train: bool, backward: bool) -> int:
        samples, size = 2 * self.sample_num, x.dtype.itemsize
        forward = part_bytes(x, y, size, (2 * samples + 3) * size)
        if not backward:
            return forward
        terms = samples**2 * y.shape[0] * y.shape[1] * self.group_size * size
        return max(forward, part_bytes(x, y, size, 0) + get_num_threads() * 3 * min(terms, CHUNK))

    def gpu_kernels(self, dtype: np.dtype[Any]) -> PositionSensitive:
        return PositionSensitive("psroi_align", dtype, self.sample_num)


class PSROIAlign(PSROILayer):
    """Position-sensitive average of bilinear samples.

    bottom: x (N, output_dim * group_size^2, H, W); rois (R, 5) = batch index, x1, y1, x2, y2 in image pixels.
    top: y (R, output_dim, group_size, group_size). An empty bin gives 0. Raises LayerError for another number of
    channels, output_dim, group_size or sample_num 0, and bad rois.
    """

    type = "PSROIAlign"
    param_block = ("psroi_align_param",)

    uses_kernels = ((ps_roi_align,), (ps_roi_align_backward,))

    kind = PsRoiAlign
    operator: PsRoiAlign


def _axis_samples(steps: AxisSteps, size: int, sample_num: int) -> Array:
    """Return sample positions (R, group, sample_num) along an axis of that size; NaN at or past a bin's end."""
    dtype = steps.length.dtype.type
    start, end = steps.start.clip(0, max(size - 1, 0)), steps.end.clip(0, max(size - 1, 0))
    step = steps.length / dtype(sample_num + 1)  # as in the original, from the unclipped bin, even if its start is clipped
    places = start[:, :, None] + np.arange(1, sample_num + 1, dtype=dtype) * step[:, None, None]
    kept: Array = np.where(places < end[:, :, None], places, dtype(np.nan))  # NaN marks no sample; the divisor stays n^2
    return kept
