"""RoiLayer: the base class of the layers that pool a feature map over rois."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from minicaffe.blob import Blob
from minicaffe.cuda.device import current
from minicaffe.cuda.roi import Sizes, fits
from minicaffe.errors import LayerError
from minicaffe.layer import Count, Layer

from .roi_geometry import Array, rois_problem, width_problem

MOST_SAMPLES = 1000
"""Most samples along a side of a bin."""


class RoiLayer(Layer):
    """bottom: x (N, C, H, W); rois (R, 5) or (R, 5, 1, 1). top: y (R, ?, PH, PW). Checks what all of them check.

    A subclass's setup sets spatial_scale, and it has pool_gpu and spread_gpu. The diff of rois is zero.
    """

    num_bottom: ClassVar[Count] = 2
    num_top: ClassVar[Count] = 1
    index_bottoms: tuple[int, ...] = (1,)
    weight_names = ()
    is_roi_layer = True
    spatial_scale: float

    def read_scale(self, param: Any, block: str) -> float:
        """param.spatial_scale, or LayerError when it is not finite."""
        scale = float(param.spatial_scale)
        if not math.isfinite(scale):
            raise self.error(f"spatial_scale must be finite, got {scale}", f"{block}.spatial_scale")
        return scale

    def read_positive(self, param: Any, block: str, field: str) -> int:
        """The field, or LayerError when it is not > 0."""
        value = int(getattr(param, field))
        if value <= 0:
            raise self.error(f"{field} must be > 0, got {value}", f"{block}.{field}")
        return value

    def check_samples(self, count: int, field: str) -> None:
        """LayerError for more samples along a side of a bin than any map has use for: memory and time grow with them."""
        if count > MOST_SAMPLES:
            raise self.error(f"{field.rpartition('.')[2]} must be at most {MOST_SAMPLES}, got {count}", field)

    def check_shapes(self, bottom: Sequence[Blob]) -> None:
        """LayerError unless x has 4 axes and rois 5 columns."""
        if len(bottom[0].shape) != 4:
            raise self.error(f"the feature map must have 4 axes (N, C, H, W), got shape {bottom[0].shape}", "bottom[0]")
        problem = width_problem(bottom[1].shape)
        if problem:
            raise self.error(problem, "bottom[1]")

    def rois(self, bottom: Sequence[Blob]) -> Array:
        """The rois as (R, 5), or LayerError that names the first bad one."""
        rois = bottom[1].read_data().reshape(-1, 5)
        problem = rois_problem(rois, bottom[0].shape[0], self.spatial_scale)
        if problem:
            raise self.error(problem, "bottom[1]")
        return rois

    # On the GPU.

    def pool_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob], sizes: Sizes, bad: int) -> None:
        """Forward; bad: the address of the flag for bad rois."""
        raise NotImplementedError

    def spread_gpu(self, top: Sequence[Blob], bottom: Sequence[Blob], sizes: Sizes, bad: int) -> None:
        """Backward to bottom[0], where it and the top have elements; bad: the address of the flag for bad rois."""
        raise NotImplementedError

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.pool_gpu(bottom, top, self._sizes(bottom, top), self._watch(bottom))

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        """A row of the map must fit in shared memory; backward_cpu serves where it does not."""
        if not propagate_down[0]:
            return
        if not fits(bottom[0].shape[3], self.dtype):
            super().backward_gpu(top, propagate_down, bottom)
            return
        sizes = self._sizes(bottom, top)
        if bottom[0].count and top[0].count:
            self.spread_gpu(top, bottom, sizes, self._watch(bottom))
        else:
            bottom[0].zero_diff()

    def _sizes(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> Sizes:
        (images, channels, height, width), pooled = bottom[0].shape, top[0].shape[2:]
        return Sizes(bottom[1].shape[0], images, channels, height, width, pooled[0], pooled[1], self.spatial_scale)

    def _watch(self, bottom: Sequence[Blob]) -> int:
        """The address of the flag that a kernel sets to R - (first bad row): rois() then raises as on the CPU."""
        count = bottom[1].shape[0]

        def error(value: int) -> LayerError:
            try:
                self.rois(bottom)
            except LayerError as problem:
                return problem
            return self.error(f"roi {count - value} was bad; it has been overwritten since", "bottom[1]")

        return current().current_stream.watch(error)
