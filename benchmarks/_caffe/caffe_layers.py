"""Layers that BVLC's Caffe lacks, as its Python layers, for a process of Caffe: benchmarks/caffe.py. The work is in roi.cpp.

No part of minicaffe can be imported here, and Python may be as old as the Caffe.
"""

import ctypes
import json

import caffe
import numpy as np


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


class Given(caffe.Layer):
    """param_str: the layer's sizes, and the library of roi.cpp, as JSON."""

    def setup(self, bottom, top):
        self.sizes = json.loads(self.param_str)
        self.library = ctypes.CDLL(self.sizes["library"])


class ROIPooling(Given):
    def reshape(self, bottom, top):
        shape = (bottom[1].num, bottom[0].channels, self.sizes["pooled_h"], self.sizes["pooled_w"])
        top[0].reshape(*shape)
        self.argmax = np.empty(shape, np.int32)
        self.numbers = bottom[0].data.shape[1:], (bottom[1].num, *shape[2:])

    def forward(self, bottom, top):
        x, rois, y = bottom[0].data, bottom[1].data, top[0].data
        plane, pooled = self.numbers
        scale = ctypes.c_float(self.sizes["spatial_scale"])
        self.library.roi_pool(pointer(x), *plane, pointer(rois), *pooled, scale, pointer(y), pointer(self.argmax))

    def backward(self, top, propagate_down, bottom):
        dx, rois, dy = bottom[0].diff, bottom[1].data, top[0].diff
        plane, pooled = self.numbers
        dx[...] = 0
        self.library.roi_pool_backward(pointer(dy), pointer(self.argmax), *plane, pointer(rois), *pooled, pointer(dx))


class PSROIPooling(Given):
    def reshape(self, bottom, top):
        top[0].reshape(bottom[1].num, self.sizes["output_dim"], self.sizes["group_size"], self.sizes["group_size"])

    def forward(self, bottom, top):
        self.run(bottom[0].data, bottom[1].data, top[0].data, 0)

    def backward(self, top, propagate_down, bottom):
        dx = bottom[0].diff
        dx[...] = 0
        self.run(dx, bottom[1].data, top[0].diff, 1)

    def run(self, x, rois, y, backward):
        sizes = self.sizes["output_dim"], x.shape[2], x.shape[3]
        more = self.sizes["group_size"], ctypes.c_float(self.sizes["spatial_scale"])
        self.library.psroi_pool(pointer(x), *sizes, pointer(rois), len(rois), *more, pointer(y), backward)


class SmoothL1Loss(Given):
    """bottom: x, its target, the weights within, the weights of the loss (absent in R-FCN's, which has a fixed divisor)."""

    def reshape(self, bottom, top):
        top[0].reshape(1)

    def forward(self, bottom, top):
        x, target, within = (bottom[i].data.ravel() for i in range(3))
        outside = (bottom[3].data.ravel() if len(bottom) > 3 else np.float32(1)) / self.sizes.get("divisor", bottom[0].num)
        square = self.sizes.get("sigma", 1) ** 2
        d = within * (x - target)
        near = np.abs(d) < 1 / square
        loss = np.where(near, square * d * d / 2, np.abs(d) - 0.5 / square)
        top[0].data[...] = (outside * loss).sum()
        self.slope = within * outside * np.where(near, square * d, np.sign(d))

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff.flat = self.slope * top[0].diff.flat[0]


SmoothL1LossOHEM = SmoothL1Loss
