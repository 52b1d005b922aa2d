"""ROIAlign: three layers of one type that pool bilinear samples of a feature map over rois.

    pool: MAX  y = max of samples at unit steps from each bin's start       (ROIAlignMax, Caffe's)
    pool: AVE  y = mean of an n x n grid of samples in each bin             (ROIAlignMean, Mask R-CNN's)
    pad_ratio  y = the samples at the corners of the bins                   (ROIAlignGrid, Cascade R-CNN's)

Source: the ROIAlign layer written for Caffe; Mask R-CNN (He et al. 2017); cascade-rcnn. With roi_align_param an explicit pool
decides; without it a given sampling_ratio, 0 too, means AVE. With roi_pooling_param a given pad_ratio, 0 too, is Cascade
R-CNN's; without it the net's fork decides, else it is Caffe's.

Cascade R-CNN's ROIAlign: bilinear samples at the corners of the bins.

    y[r, c, ph, pw] = x[n_r, c] at (y1 + ph * height / PH, x1 + pw * width / PW), ph in [0, PH], pw in [0, PW]

The roi is widened by pad_ratio. Its corners are scaled and moved by -0.5, not rounded; the size is x2 - x1. A roi without
height or width gives 0, as does a sample outside [-0.5, H - 0.5]. A sample past the outer pixels has their value. A Pooling of
2 x 2 after the layer makes each bin the mean of its corners.

Source: Cai and Vasconcelos, Cascade R-CNN (2018); roi_align_layer.cpp of cascade-rcnn and mscnn.
"""

# ROIAlignMax is in roi_align_max.py, ROIAlignMean in roi_align_mean.py. WideningOperator widens rois for ROIAlignGrid, and
# RoiAlignGrid.plan places its samples. The definition is the loop of means_by_definition in roi_samples.py.

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.roi import Means
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind, NetFork
from minicaffe.layer import Layer
from minicaffe.layers.roi.operator import GridOperator, WideningOperator
from minicaffe.layers.roi.roi_align_max import RoiAlignMax, add_at_samples, pool_maxima
from minicaffe.layers.roi.roi_align_mean import MEAN_KERNELS, GridMeans, RoiAlign
from minicaffe.layers.roi.roi_geometry import AxisSteps, RoiPlan, cut_axis, cut_corners
from minicaffe.layers.roi.roi_layer import MaximaLayer, RoiLayer
from minicaffe.layers.roi.roi_samples import SamplePlan, Samples
from minicaffe.proto import caffe_pb2


@dataclass(frozen=True, kw_only=True)
class RoiAlignGrid(WideningOperator, GridMeans):
    """One sample at each corner of the pooled_h x pooled_w bins: (pooled_h + 1) x (pooled_w + 1) samples."""

    def bins(self, channels: int) -> tuple[int, int, int]:
        return channels, self.pooled_h + 1, self.pooled_w + 1

    def most_samples(self, length: int, bins: int) -> int:
        return 1

    def plan(self, rois: Array, size: tuple[int, int]) -> SamplePlan:
        """Return the plan of rois, which are widened, scaled, moved by half a pixel and cut into bins.

        The samples are the corners, which are also the start and end of the steps.
        """
        rois = self.widened(rois)
        scaled = rois[:, 1:] * rois.dtype.type(self.spatial_scale)

        def cut(first: Array, last: Array, count: int) -> AxisSteps:
            steps = cut_axis(first, last - first, count)
            return steps._replace(start=steps.edges, end=steps.edges)

        steps = cut_corners(scaled, scaled - rois.dtype.type(0.5), (self.pooled_h, self.pooled_w), cut)
        h, w = _on_map(steps.h, size[0]), _on_map(steps.w, size[1])
        return RoiPlan(rois, size, steps, Samples(h, w, np.ones(len(rois), rois.dtype)))

    def gpu_kernels(self, dtype: np.dtype[Any]) -> Means:
        return Means("roi_align_grid", dtype, pad_ratio=self.pad_ratio)


def _on_map(axis: AxisSteps, size: int) -> Array:
    """Return the corners (R, P + 1, 1) along an axis of that size; NaN off the map, and for a roi without length."""
    at = axis.start
    used = (axis.extent > 0)[:, None] & (at >= -0.5) & (at <= size - 0.5) & (size > 0)
    return np.where(used, at, at.dtype.type(np.nan))[:, :, None]


CAFFE, CASCADE, MAKEFILE = "Caffe", "Cascade R-CNN", "makefile/frcnn"
"""The variants of the layer."""


class ROIAlign(Forked, RoiLayer):
    """Bilinear samples in each bin of each roi: its layers are ROIAlignMax, ROIAlignMean and ROIAlignGrid.

    bottom: x (N, C, H, W); rois (R, 5) = batch index, x1, y1, x2, y2 in image pixels. top: y (R, C, pooled_h, pooled_w), of
    ROIAlignGrid (R, C, pooled_h + 1, pooled_w + 1). Reads roi_align_param or roi_pooling_param. An empty bin gives 0. Raises
    LayerError for pooled_h or pooled_w 0, both parameter blocks, what belongs to another kind, and bad rois.
    """

    type = "ROIAlign"
    num_bottom = (2, 3)
    index_bottoms = (1, 2)
    param_block = ("roi_align_param", "roi_pooling_param")
    kinds = (
        Kind(CAFFE, (), "maxima of samples, or means"),
        Kind(CASCADE, ("cascade", "mscnn"), "pad_ratio"),
        Kind(MAKEFILE, ("mkfrcnn",), "bi_type"),
    )
    operator: GridOperator

    @classmethod
    def resolve_class(cls, param: caffe_pb2.LayerParameter, fork: NetFork) -> builtins.type[Layer]:
        if cls is not ROIAlign:
            return cls
        align, pooling = param.roi_align_param, param.roi_pooling_param
        told = pooling.HasField("pad_ratio") or fork.name in cls.kinds[1].forks
        if told and param.HasField("roi_pooling_param") and not param.HasField("roi_align_param"):
            return ROIAlignGrid
        # An explicit pool decides; otherwise any sampling_ratio does, even 0.
        mean = align.pool == align.AVE if align.HasField("pool") else align.HasField("sampling_ratio")
        return ROIAlignMean if mean else ROIAlignMax

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        block = "roi_pooling_param" if self.param.HasField("roi_pooling_param") else "roi_align_param"
        if block == "roi_pooling_param" and self.param.HasField("roi_align_param"):
            raise self.error("roi_align_param and roi_pooling_param are both given: give one", block)
        if block == "roi_pooling_param" and self.fork.name in self.kinds[2].forks:
            raise self.error(f"{MAKEFILE}'s ROIAlign is not built in", "type")
        if self.fork.name == "synopsys":  # its layer has four samples in each bin, weighted by their places in the roi
            raise self.error("the ROIAlign of Synopsys' Caffe is not built in", "type")
        if block == "roi_pooling_param":
            self.choose(CAFFE, "no other sign")
        self.read_operator(block)


class ROIAlignMax(ROIAlign, MaximaLayer):
    """Caffe's ROIAlign, pool: MAX. A third bottom's first value, made positive, replaces spatial_scale."""

    uses_kernels = ((pool_maxima,), (add_at_samples,))
    kind = RoiAlignMax
    operator: RoiAlignMax

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        param = self.param.roi_align_param
        for field, given in (("sampling_ratio", param.HasField("sampling_ratio")), ("aligned", param.aligned)):
            if given:
                raise self.error(f"{field} belongs to pool: AVE; this layer's pool is MAX", f"roi_align_param.{field}")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        if len(bottom) > 2 and bottom[2].count < 1:
            raise self.error("the third bottom (the spatial scale) is empty", "bottom[2]")

    def read_scale_bottom(self, bottom: Sequence[Blob]) -> None:
        if len(bottom) > 2:
            scale = abs(float(bottom[2].read_data().reshape(-1)[0]))  # the original takes fabs
            if not math.isfinite(scale):
                raise self.error(f"the third bottom's spatial scale must be finite, got {scale}", "bottom[2]")
            self.spatial_scale = scale


class ROIAlignMean(ROIAlign):
    """Mask R-CNN's ROIAlign, pool: AVE."""

    uses_kernels = MEAN_KERNELS
    kind = RoiAlign
    operator: RoiAlign

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        if len(bottom) > 2:
            raise self.error("a third bottom (the spatial scale) belongs to pool: MAX; this layer's pool is AVE", "bottom[2]")


class ROIAlignGrid(ROIAlign):
    """Cascade R-CNN's ROIAlign, also in MS-CNN."""

    uses_kernels = MEAN_KERNELS
    kind = RoiAlignGrid
    operator: RoiAlignGrid

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        if self.param.roi_pooling_param.HasField("pad_ratio"):
            self.choose(CASCADE, "roi_pooling_param has pad_ratio")
        else:
            self.choose_by_fork()
        if len(bottom) > 2:
            raise self.error("a third bottom (the spatial scale) belongs to Caffe's; this is Cascade R-CNN's", "bottom[2]")
