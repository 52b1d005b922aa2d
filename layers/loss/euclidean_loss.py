"""EuclideanLoss: half the mean squared distance.

    loss = sum((x - target)^2) / (2 N)        dx = (x - target) / N = -dtarget

Source: Caffe's euclidean_loss_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.cuda.launches import launch_loss
from minicaffe.layers.loss.loss import check_same_size

from .loss import DifferenceLoss, device_diffs, put_opposite


class EuclideanLoss(DifferenceLoss):
    """loss = sum((x - target)^2) / (2 N).

    bottom: x (N, ...), target with as many values and the same first axis. top: loss (). Both bottoms get gradients.
    Raises LayerError for a target of another size.
    """

    type = "EuclideanLoss"
    copies = (1, 2)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        check_same_size(self, bottom, 1)
        self.difference.reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        d = self.difference.data
        np.subtract(bottom[0].data, bottom[1].data.reshape(d.shape), out=d)
        top[0].data[...] = np.square(d).sum(dtype=np.float64) / (2 * max(1, bottom[0].shape[0]))

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        count, fixed = bottom[0].count, 2.0 * max(1, bottom[0].shape[0])
        x, target = (blob.device_data("read") for blob in bottom)
        given = (count, x, target, self.difference.device_data("write"))
        launch_loss("euclidean_loss.euclidean_loss", self.dtype, count, *given, loss=top[0], fixed=fixed)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        scale = float(top[0].diff.item()) / max(1, bottom[0].shape[0])
        put_opposite(self.difference.data * scale, propagate_down, bottom)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        count, images = bottom[0].count, max(1.0, bottom[0].shape[0])
        given = (count, self.difference.device_data("read"), top[0].device_diff("read"), images)
        self.launch("euclidean_loss.euclidean_loss_backward", count, *given, *device_diffs(bottom[:2], propagate_down))
