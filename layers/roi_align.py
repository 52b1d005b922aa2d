"""ROIAlign: two layers under one type, pooling bilinear samples of a feature map over rois.

    pool: MAX  y = max of samples at unit steps from each bin's start       (Caffe's; see roi_align_max.py)
    pool: AVE  y = mean of an n x n grid of samples in each bin             (Mask R-CNN's; see roi_align_mean.py)

Source: the ROIAlign layer written for Caffe; Mask R-CNN (He et al. 2017). An explicit pool decides; without it a given
sampling_ratio, 0 too, means AVE.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.cuda.roi import Means
from minicaffe.mode import TRAIN
from minicaffe.proto import caffe_pb2

from .roi.roi_align_max import (
    add_at_samples,
    add_at_samples_bytes,
    pool_samples,
    pool_samples_bytes,
    roi_align_max_plan,
)
from .roi.roi_align_mean import means_backward, pool_means, roi_align_plan, working_bytes
from .roi.roi_geometry import Array
from .roi.roi_layer import MaximaLayer, RoiLayer
from .roi.roi_samples import SamplePlan


class ROIAlign(RoiLayer):
    """Maximum or mean of bilinear samples in each bin of each roi: its layers are ROIAlignMax and ROIAlignMean.

    bottom: x (N, C, H, W); rois (R, 5) = batch index, x1, y1, x2, y2 in image pixels. top: y (R, C, pooled_h, pooled_w).
    Reads roi_align_param or roi_pooling_param. An empty bin gives 0. Raises LayerError for pooled_h or pooled_w 0, both
    parameter blocks, what belongs to the other kind, and bad rois.
    """

    type = "ROIAlign"
    num_bottom = (2, 3)
    index_bottoms = (1, 2)
    param_block = ("roi_align_param", "roi_pooling_param")

    def __new__(cls, param: caffe_pb2.LayerParameter, **given: Any) -> ROIAlign:
        if cls is not ROIAlign:
            return super().__new__(cls)
        align = param.roi_align_param
        mean = align.pool == align.AVE if align.HasField("pool") else align.HasField("sampling_ratio")
        return super().__new__(ROIAlignMean if mean else ROIAlignMax)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        block = "roi_pooling_param" if self.param.HasField("roi_pooling_param") else "roi_align_param"
        if block == "roi_pooling_param" and self.param.HasField("roi_align_param"):
            raise self.error("roi_align_param and roi_pooling_param are both given: give one", block)
        self.read_pooled(getattr(self.param, block), block)


class ROIAlignMax(ROIAlign, MaximaLayer):
    """Caffe's ROIAlign, pool: MAX. A third bottom's first value, made positive, replaces spatial_scale."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        param = self.param.roi_align_param
        for field, given in (("sampling_ratio", param.HasField("sampling_ratio")), ("aligned", param.aligned)):
            if given:
                raise self.error(f"{field} belongs to pool: AVE; this layer's pool is MAX", f"roi_align_param.{field}")
        self.make_kernels("roi_align_max")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        if len(bottom) > 2 and bottom[2].count < 1:
            raise self.error("the third bottom (the spatial scale) is empty", "bottom[2]")

    def working_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> int:
        """Backward: of rois that have the whole map."""
        taken = pool_samples_bytes(bottom[0], top[0], self.phase == TRAIN)
        return taken if propagate_down is None else max(taken, add_at_samples_bytes(bottom[0], top[0]))

    def read_scale_bottom(self, bottom: Sequence[Blob]) -> None:
        if len(bottom) > 2:
            self.spatial_scale = abs(float(bottom[2].read_data().reshape(-1)[0]))
            if not math.isfinite(self.spatial_scale):
                raise self.error(f"the third bottom's spatial scale must be finite, got {self.spatial_scale}", "bottom[2]")

    def plan_rois(self, rois: Array, size: tuple[int, int]) -> SamplePlan:
        return roi_align_max_plan(rois, (self.pooled_h, self.pooled_w), self.spatial_scale, size)

    def pool(self, x: Array, plan: SamplePlan, y: Array | None, argmax: NDArray[np.int32] | None) -> None:
        pool_samples(x, plan, y, argmax)

    def send_back(self, dy: Array, plan: SamplePlan, argmax: NDArray[np.int32], dx: Array) -> None:
        add_at_samples(dy, plan, argmax, dx)


class ROIAlignMean(ROIAlign):
    """Mask R-CNN's ROIAlign, pool: AVE."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        self.sampling_ratio, self.aligned = self.param.roi_align_param.sampling_ratio, self.param.roi_align_param.aligned
        self.check_samples(self.sampling_ratio, "roi_align_param.sampling_ratio")
        if len(bottom) > 2:
            raise self.error("a third bottom (the spatial scale) belongs to pool: MAX; this layer's pool is AVE", "bottom[2]")
        self.kernels = Means(self.dtype, self.sampling_ratio, self.aligned)

    def working_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> int:
        return working_bytes(bottom[0], top[0], self.sampling_ratio, propagate_down is not None)

    def plan_rois(self, rois: Array, size: tuple[int, int]) -> SamplePlan:
        pooled, ratio, aligned = (self.pooled_h, self.pooled_w), self.sampling_ratio, self.aligned
        return roi_align_plan(rois, pooled, self.spatial_scale, size, sampling_ratio=ratio, aligned=aligned)

    def pool_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob], plan: SamplePlan) -> None:
        pool_means(bottom[0].read_data(), plan, top[0].data)

    def pool_backward_cpu(self, top: Sequence[Blob], bottom: Sequence[Blob], plan: SamplePlan) -> None:
        means_backward(top[0].read_diff(), plan, bottom[0].diff)
