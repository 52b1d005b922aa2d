"""The ROI operators as Modules, and under the names that old PyTorch code calls them by.

_RoIPooling and RoIPoolFunction: jwyang's faster-rcnn.pytorch; ROIAlign: maskrcnn-benchmark.
"""

from __future__ import annotations

from torch import Tensor, nn

from .roi import Rois, Size, pair, ps_roi_align, ps_roi_pool, roi_align, roi_align_max, roi_pool


class RoIPool(nn.Module):
    """roi_pool as a Module."""

    def __init__(self, output_size: Size, spatial_scale: float = 1.0) -> None:
        super().__init__()
        self.output_size, self.spatial_scale = output_size, float(spatial_scale)

    def forward(self, features: Tensor, rois: Rois) -> Tensor:
        return roi_pool(features, rois, self.output_size, self.spatial_scale)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(output_size={self.output_size}, spatial_scale={self.spatial_scale})"


class RoIAlignMax(RoIPool):
    """roi_align_max as a Module."""

    def forward(self, features: Tensor, rois: Rois) -> Tensor:
        return roi_align_max(features, rois, self.output_size, self.spatial_scale)


class _RoIPooling(RoIPool):
    """RoIPool of (pooled_height, pooled_width, spatial_scale)."""

    def __init__(self, pooled_height: int, pooled_width: int, spatial_scale: float) -> None:
        super().__init__((int(pooled_height), int(pooled_width)), spatial_scale)
        self.pooled_height, self.pooled_width = pair(self.output_size)


class RoIPoolFunction:
    """RoIPoolFunction(pooled_height, pooled_width, spatial_scale)(features, rois), as before PyTorch 1.5."""

    def __init__(self, pooled_height: int, pooled_width: int, spatial_scale: float) -> None:
        self.pooled_height, self.pooled_width = int(pooled_height), int(pooled_width)
        self.spatial_scale = float(spatial_scale)

    def __call__(self, features: Tensor, rois: Rois) -> Tensor:
        return roi_pool(features, rois, (self.pooled_height, self.pooled_width), self.spatial_scale)


class ROIAlign(nn.Module):
    """roi_align as a Module, with maskrcnn-benchmark's arguments and text."""

    def __init__(self, output_size: Size, spatial_scale: float, sampling_ratio: int, aligned: bool = False) -> None:
        super().__init__()
        self.output_size, self.spatial_scale = output_size, spatial_scale
        self.sampling_ratio, self.aligned = sampling_ratio, aligned

    def forward(self, input: Tensor, rois: Rois) -> Tensor:
        return roi_align(input, rois, self.output_size, self.spatial_scale, self.sampling_ratio, self.aligned)

    def __repr__(self) -> str:
        sizes = f"output_size={self.output_size}, spatial_scale={self.spatial_scale}, sampling_ratio={self.sampling_ratio}"
        return f"{type(self).__name__}({sizes}{', aligned=True' if self.aligned else ''})"


class PSRoIPool(nn.Module):
    """ps_roi_pool as a Module."""

    def __init__(self, group_size: int, spatial_scale: float = 1.0) -> None:
        super().__init__()
        self.group_size, self.spatial_scale = int(group_size), float(spatial_scale)

    def forward(self, features: Tensor, rois: Rois) -> Tensor:
        return ps_roi_pool(features, rois, self.group_size, self.spatial_scale)

    def extra_repr(self) -> str:
        return f"group_size={self.group_size}, spatial_scale={self.spatial_scale}"


class PSRoIAlign(PSRoIPool):
    """ps_roi_align as a Module."""

    def __init__(self, group_size: int, spatial_scale: float = 1.0, sample_num: int = 2) -> None:
        super().__init__(group_size, spatial_scale)
        self.sample_num = int(sample_num)

    def forward(self, features: Tensor, rois: Rois) -> Tensor:
        return ps_roi_align(features, rois, self.group_size, self.spatial_scale, self.sample_num)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, sample_num={self.sample_num}"
