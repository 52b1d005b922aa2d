"""ROIAlign: three layers under one type, pooling bilinear samples of a feature map over rois.

    pool: MAX  y = max of samples at unit steps from each bin's start       (Caffe's; see roi_align_max.py)
    pool: AVE  y = mean of an n x n grid of samples in each bin             (Mask R-CNN's; see roi_align_mean.py)
    pad_ratio  y = the samples at the corners of the bins                   (Cascade R-CNN's; see roi_align_grid.py)

Source: the ROIAlign layer written for Caffe; Mask R-CNN (He et al. 2017); cascade-rcnn. With roi_align_param an explicit pool
decides; without it a given sampling_ratio, 0 too, means AVE. With roi_pooling_param a given pad_ratio, 0 too, is Cascade
R-CNN's; without it the net's fork decides, and where nothing tells that it is Caffe's.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence

from minicaffe.blob import Blob
from minicaffe.formats.fork_kinds import Kind, NetFork
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

from .operator import GridOperator
from .roi_align_grid import RoiAlignGrid
from .roi_align_max import RoiAlignMax, add_at_samples, pool_maxima
from .roi_align_mean import MEAN_KERNELS, RoiAlign
from .roi_layer import MaximaLayer, RoiLayer

CAFFE, CASCADE, MAKEFILE = "Caffe", "Cascade R-CNN", "makefile/frcnn"
"""Whose a layer is."""


class ROIAlign(RoiLayer):
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
    def serving(cls, param: caffe_pb2.LayerParameter, fork: NetFork) -> builtins.type[Layer]:
        if cls is not ROIAlign:
            return cls
        align, pooling = param.roi_align_param, param.roi_pooling_param
        told = pooling.HasField("pad_ratio") or fork.name in cls.kinds[1].forks
        if told and param.HasField("roi_pooling_param") and not param.HasField("roi_align_param"):
            return ROIAlignGrid
        # an explicit pool decides, else a sampling_ratio, 0 too
        mean = align.pool == align.AVE if align.HasField("pool") else align.HasField("sampling_ratio")
        return ROIAlignMean if mean else ROIAlignMax

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        block = "roi_pooling_param" if self.param.HasField("roi_pooling_param") else "roi_align_param"
        if block == "roi_pooling_param" and self.param.HasField("roi_align_param"):
            raise self.error("roi_align_param and roi_pooling_param are both given: give one", block)
        if block == "roi_pooling_param" and self.fork.name in self.kinds[2].forks:
            raise self.error(f"{MAKEFILE}'s ROIAlign is not built in", "type")
        if self.fork.name == "synopsys":  # roi_align_param, but four samples a bin, weighted by places in the roi
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
    """Cascade R-CNN's ROIAlign, which MS-CNN has too."""

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
