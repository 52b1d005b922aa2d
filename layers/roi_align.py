"""ROIAlign: two layers under one type, pooling bilinear samples of a feature map over rois.

    pool: MAX  y = max of samples at unit steps from each bin's start       (Caffe's; see roi_align_max.py)
    pool: AVE  y = mean of an n x n grid of samples in each bin             (Mask R-CNN's; see roi_align_mean.py)

Source: the ROIAlign layer written for Caffe; Mask R-CNN (He et al. 2017). An explicit pool decides; without it a given
sampling_ratio, 0 too, means AVE.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.cuda.roi import Means, Sizes, Winners
from minicaffe.mode import TRAIN
from minicaffe.proto import caffe_pb2

from .roi_align_max import maxima_and_argmax, roi_align_max_argmax, roi_align_max_backward
from .roi_align_mean import roi_align, roi_align_backward
from .roi_layer import RoiLayer


class ROIAlign(RoiLayer):
    """Maximum or mean of bilinear samples in each bin of each roi (see the module).

    bottom: x (N, C, H, W); rois (R, 5) = batch index, x1, y1, x2, y2 in image pixels; with MAX optionally a third, whose
    first value, made positive, replaces spatial_scale. top: y (R, C, pooled_h, pooled_w). Reads roi_align_param or
    roi_pooling_param. An empty bin gives 0. Raises LayerError for pooled_h or pooled_w 0, MAX with a sampling_ratio or
    aligned, AVE with a third bottom, both parameter blocks, and bad rois.
    """

    type = "ROIAlign"
    num_bottom = (2, 3)
    index_bottoms = (1, 2)
    param_block = ("roi_align_param", "roi_pooling_param")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        block = "roi_pooling_param" if self.param.HasField("roi_pooling_param") else "roi_align_param"
        if block == "roi_pooling_param" and self.param.HasField("roi_align_param"):
            raise self.error("roi_align_param and roi_pooling_param are both given: give one", block)
        param = getattr(self.param, block)
        self.pooled_h = self.read_positive(param, block, "pooled_h")
        self.pooled_w = self.read_positive(param, block, "pooled_w")
        self.spatial_scale = self.read_scale(param, block)
        self.mean = self._read_pool()
        self.sampling_ratio = self.param.roi_align_param.sampling_ratio
        self.check_samples(self.sampling_ratio, "roi_align_param.sampling_ratio")
        self.aligned = self.param.roi_align_param.aligned
        if self.mean and len(bottom) > 2:
            raise self.error("a third bottom (the spatial scale) belongs to pool: MAX; this layer's pool is AVE", "bottom[2]")
        self._means, self._maxima = Means(self.dtype), Winners("roi_align_max", self.dtype)
        self._argmax: Blob | None = None
        self._places = Blob((), np.int32)

    def _read_pool(self) -> bool:
        """Whether the pool is AVE."""
        param = self.param.roi_align_param
        if param.HasField("pool"):
            mean = param.pool == caffe_pb2.ROIAlignParameter.AVE
        else:
            mean = param.HasField("sampling_ratio")
        if not mean and param.HasField("sampling_ratio"):
            raise self.error("sampling_ratio belongs to pool: AVE; this layer's pool is MAX", "roi_align_param.sampling_ratio")
        if not mean and param.aligned:
            raise self.error("aligned belongs to pool: AVE; this layer's pool is MAX", "roi_align_param.aligned")
        return mean

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.check_shapes(bottom)
        if len(bottom) > 2 and bottom[2].count < 1:
            raise self.error("the third bottom (the spatial scale) is empty", "bottom[2]")
        top[0].reshape(bottom[1].shape[0], bottom[0].shape[1], self.pooled_h, self.pooled_w)

    def kept_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
        return 4 * top[0].count if self.phase == TRAIN and not self.mean else 0

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._take_scale(bottom)
        x, rois, size = bottom[0].data, self.rois(bottom), (self.pooled_h, self.pooled_w)
        if self.mean:
            ratio, aligned = self.sampling_ratio, self.aligned
            top[0].data[...] = roi_align(x, rois, *size, self.spatial_scale, sampling_ratio=ratio, aligned=aligned)
        else:
            training = self.phase == TRAIN
            top[0].data[...], argmax = maxima_and_argmax(x, rois, size, self.spatial_scale, argmax=training)
            self._argmax = self._keep(argmax) if training else None

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        self._take_scale(bottom)
        dy, rois, shape = top[0].diff, self.rois(bottom), bottom[0].shape
        if self.mean:
            ratio, aligned, dx = self.sampling_ratio, self.aligned, bottom[0].diff
            roi_align_backward(dy, rois, self.spatial_scale, shape, sampling_ratio=ratio, aligned=aligned, out=dx)
        else:
            argmax = (self._argmax or self._find_argmax(bottom)).read_data()
            bottom[0].diff[...] = roi_align_max_backward(dy, rois, argmax, self.spatial_scale, shape)

    def _find_argmax(self, bottom: Sequence[Blob]) -> Blob:
        x, rois = bottom[0].read_data(), self.rois(bottom)
        return self._keep(roi_align_max_argmax(x, rois, self.pooled_h, self.pooled_w, self.spatial_scale))

    def _keep(self, argmax: NDArray[np.int32]) -> Blob:
        self._places.reshape(argmax.shape)
        self._places.data[...] = argmax
        return self._places

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._take_scale(bottom)
        super().forward_gpu(bottom, top)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        self._take_scale(bottom)
        super().backward_gpu(top, propagate_down, bottom)

    def pool_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob], sizes: Sizes, bad: int) -> None:
        if self.mean:
            self._means.pool(sizes, bottom[0], bottom[1], top[0], (self.sampling_ratio, self.aligned), bad)
            return
        self._argmax = self._places if self.phase == TRAIN else None
        self._places.reshape(top[0].shape)
        at = self._places.device_data("write") if self._argmax else 0
        self._maxima.pool(sizes, bottom[0], bottom[1], top[0].device_data("write"), at, bad)

    def spread_gpu(self, top: Sequence[Blob], bottom: Sequence[Blob], sizes: Sizes, bad: int) -> None:
        if self.mean:
            self._means.backward(sizes, bottom[1], top[0], bottom[0], (self.sampling_ratio, self.aligned), bad)
            return
        if self._argmax is None:
            self._places.reshape(top[0].shape)
            self._maxima.pool(sizes, bottom[0], bottom[1], 0, self._places.device_data("write"), bad)
        self._maxima.backward(sizes, bottom[1], self._places.device_data("read"), top[0], bottom[0], bad)

    def _take_scale(self, bottom: Sequence[Blob]) -> None:
        """The third bottom's scale, if there is one."""
        if len(bottom) > 2:
            self.spatial_scale = abs(float(bottom[2].read_data().reshape(-1)[0]))
            if not np.isfinite(self.spatial_scale):
                raise self.error(f"the third bottom's spatial scale must be finite, got {self.spatial_scale}", "bottom[2]")
