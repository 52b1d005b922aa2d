"""RoiLayer: the base class of the layers that pool a feature map over rois."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from minicaffe.blob import Blob
from minicaffe.layer import Count, Layer

from .roi_geometry import Array, rois_problem, width_problem


class RoiLayer(Layer):
    """bottom: x (N, C, H, W); rois (R, 5) or (R, 5, 1, 1). top: y (R, ?, PH, PW). Checks what all of them check.

    A subclass's setup sets spatial_scale. The diff of rois is zero.
    """

    num_bottom: ClassVar[Count] = 2
    num_top: ClassVar[Count] = 1
    index_bottoms: tuple[int, ...] = (1,)
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

    def check_shapes(self, bottom: Sequence[Blob]) -> None:
        """LayerError unless x has 4 axes and rois 5 columns."""
        if len(bottom[0].shape) != 4:
            raise self.error(f"the feature map must have 4 axes (N, C, H, W), got shape {bottom[0].shape}", "bottom[0]")
        problem = width_problem(bottom[1].shape)
        if problem:
            raise self.error(problem, "bottom[1]")

    def rois(self, bottom: Sequence[Blob]) -> Array:
        """The rois as (R, 5), or LayerError that names the first bad one."""
        rois = bottom[1].data.reshape(-1, 5)
        problem = rois_problem(rois, bottom[0].shape[0], self.spatial_scale)
        if problem:
            raise self.error(problem, "bottom[1]")
        return rois
