"""The ROI operators on arrays, each with its sizes: pool (forward) and spread (backward), by minicaffe.ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from minicaffe import ops

Array = NDArray[Any]


class Operator(Protocol):
    """What roi.Pool runs."""

    def pool(self, x: Array, rois: Array) -> Array:
        """x (N, C, H, W), rois (R, 5) -> y."""
        ...

    def spread(self, dy: Array, x: Array, rois: Array) -> Array:
        """dy of y's shape -> dx of x's."""
        ...


@dataclass(frozen=True)
class RoiPool:
    """ROIPooling."""

    height: int
    width: int
    scale: float

    def pool(self, x: Array, rois: Array) -> Array:
        return ops.roi_pool(x, rois, self.height, self.width, self.scale)

    def spread(self, dy: Array, x: Array, rois: Array) -> Array:
        argmax = ops.roi_pool_argmax(x, rois, self.height, self.width, self.scale)
        return ops.roi_pool_backward(dy, rois, argmax, x.shape)


@dataclass(frozen=True)
class RoiAlignMax:
    """Caffe's ROIAlign."""

    height: int
    width: int
    scale: float

    def pool(self, x: Array, rois: Array) -> Array:
        return ops.roi_align_max(x, rois, self.height, self.width, self.scale)

    def spread(self, dy: Array, x: Array, rois: Array) -> Array:
        argmax = ops.roi_align_max_argmax(x, rois, self.height, self.width, self.scale)
        return ops.roi_align_max_backward(dy, rois, argmax, self.scale, x.shape)


@dataclass(frozen=True)
class RoiAlign:
    """Mask R-CNN's ROIAlign."""

    height: int
    width: int
    scale: float
    sampling_ratio: int
    aligned: bool

    def pool(self, x: Array, rois: Array) -> Array:
        grid = self.sampling_ratio
        return ops.roi_align(x, rois, self.height, self.width, self.scale, sampling_ratio=grid, aligned=self.aligned)

    def spread(self, dy: Array, x: Array, rois: Array) -> Array:
        grid = self.sampling_ratio
        return ops.roi_align_backward(dy, rois, self.scale, x.shape, sampling_ratio=grid, aligned=self.aligned)


@dataclass(frozen=True)
class PsRoiPool:
    """PSROIPooling."""

    group: int
    scale: float

    def pool(self, x: Array, rois: Array) -> Array:
        return ops.ps_roi_pool(x, rois, self.group, self.scale)

    def spread(self, dy: Array, x: Array, rois: Array) -> Array:
        return ops.ps_roi_pool_backward(dy, rois, self.scale, x.shape)


@dataclass(frozen=True)
class PsRoiAlign:
    """PSROIAlign."""

    group: int
    scale: float
    samples: int

    def pool(self, x: Array, rois: Array) -> Array:
        return ops.ps_roi_align(x, rois, self.group, self.scale, self.samples)

    def spread(self, dy: Array, x: Array, rois: Array) -> Array:
        return ops.ps_roi_align_backward(dy, rois, self.scale, x.shape, self.samples)
