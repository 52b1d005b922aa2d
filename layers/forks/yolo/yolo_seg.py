"""YoloSeg: MobileNet-YOLO's loss of a segmentation.

    loss = object_scale^2 sum (sigmoid(x) - t)^2 / N        dx = 2 object_scale^2 (sigmoid(x) - t) sigmoid'(x) / N

Source: eric612/MobileNet-YOLO's yolo_seg.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.layers.loss.loss import DifferenceLoss, check_same_size
from minicaffe.layers.neuron.functions import sigmoid


class YoloSeg(DifferenceLoss):
    """The squared distance of sigmoids from targets, of an image on average.

    bottom: x (N, ...) scores; targets, as many; a third is not read. top: loss (). The other fields of yolo_seg_param have no
    effect, as in the fork. Only x gets a gradient, that of the loss.
    Raises LayerError for targets of another size.
    """

    type = "YoloSeg"
    num_bottom = (2, 3)
    index_bottoms = (1, 2)
    param_block = ("yolo_seg_param",)
    copies = (2, 3)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        check_same_size(self, bottom, 1)
        self.difference.reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        scale = self.param.yolo_seg_param.object_scale
        sigmoid(bottom[0].data, out=self.difference.data)
        self.difference.data[...] -= bottom[1].data.reshape(bottom[0].shape)
        flat = self.difference.data.reshape(-1)
        top[0].data[...] = scale**2 * float(flat @ flat) / max(1, bottom[0].shape[0])

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            scale, y = self.param.yolo_seg_param.object_scale, sigmoid(bottom[0].data)
            slope = 2 * scale**2 * top[0].diff.item() / max(1, bottom[0].shape[0])
            np.multiply(self.difference.data, y * (1 - y) * bottom[0].data.dtype.type(slope), out=bottom[0].diff)
