"""SmoothL1Loss: the box regression loss of Fast R-CNN.

    d = w_in * (x - target)        loss = sum(w_out * f(d)) / N
    f(d) = 0.5 (sigma d)^2 where |d| < 1 / sigma^2, else |d| - 0.5 / sigma^2

Source: Girshick, Fast R-CNN, ICCV 2015, section 2.3; caffe-fast-rcnn's smooth_l1_loss_layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.launches import launch_loss
from minicaffe.layer import Count
from minicaffe.layers.loss.loss import check_same_shape

from .loss import DifferenceLoss, device_diffs, put_opposite


class SmoothL1Loss(DifferenceLoss):
    """loss = sum(w_out * f(w_in * (x - target))) / N, with smooth_l1_loss_param.sigma (default 1).

    bottom: x (N, ...), target, optionally w_in (Fast R-CNN's nets have no other) and w_out, all of x's shape, where (N, 8) is
    (N, 8, 1, 1).
    top: loss (); optionally (Cascade R-CNN's) each item's losses, summed over the channels (N, 1, ...), whose diff is not used.
    Both x and target get gradients. As in the original, the loss counts only with an explicit loss_weight.
    Raises LayerError for other shapes, and for sigma <= 0.
    """

    type = "SmoothL1Loss"
    num_bottom = (2, 4)
    num_top: ClassVar[Count] = (1, 2)
    is_loss = False
    index_bottoms = (2, 3)
    param_block = ("smooth_l1_loss_param",)
    copies = (5, 2)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.sigma = self.param.smooth_l1_loss_param.sigma
        if not self.sigma > 0:
            raise self.error(f"sigma must be > 0, got {self.sigma:g}", "smooth_l1_loss_param.sigma")
        super().setup(bottom, top)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        for i in range(1, len(bottom)):
            check_same_shape(self, bottom, i)
        self.difference.reshape(bottom[0].shape)
        for blob in top[1:]:
            blob.reshape(*bottom[0].shape[:1], 1, *bottom[0].shape[2:])

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        weighted_difference(*_alike(bottom[:3]), out=self.difference.data)
        losses = smooth_l1(self.difference.data, self.sigma)
        if len(bottom) == 4:
            losses *= bottom[3].data.reshape(losses.shape)
        top[0].data[...] = losses.sum(dtype=np.float64) / self._items(bottom)
        for blob in top[1:]:
            blob.data[...] = losses.sum(axis=tuple(range(losses.ndim))[1:2]).reshape(blob.shape)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(top) > 1:
            super().forward_gpu(bottom, top)
            return
        count = bottom[0].count
        given = (count, *self._addresses(bottom), *self._bounds(), self.difference.device_data("write"))
        launch_loss("smooth_l1_loss.smooth_l1_loss", self.dtype, count, *given, loss=top[0], fixed=float(self._items(bottom)))

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dx = smooth_l1_backward(self.difference.data, self.sigma)
        for weight in _alike(bottom)[2:]:
            dx *= weight
        dx *= float(top[0].diff.item()) / self._items(bottom)
        put_opposite(dx, propagate_down, bottom)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        count, weights = bottom[0].count, self._addresses(bottom)[2:]
        given = (count, self.difference.device_data("read"), *weights, *self._bounds(), top[0].device_diff("read"))
        diffs = device_diffs(bottom[:2], propagate_down)
        self.launch("smooth_l1_loss.smooth_l1_loss_backward", count, *given, float(self._items(bottom)), *diffs)

    def _items(self, bottom: Sequence[Blob]) -> int:
        """Return N, the divisor of the loss, at least 1."""
        return max([1, *bottom[0].shape[:1]])

    def _addresses(self, bottom: Sequence[Blob]) -> list[int]:
        """Return the addresses of x, the target and the weights; 0 for missing weights."""
        return [blob.device_data("read") for blob in bottom] + [0] * (4 - len(bottom))

    def _bounds(self) -> tuple[float, float]:
        return self.sigma**2, 1 / self.sigma**2


def _alike(bottom: Sequence[Blob]) -> list[Array]:
    """Return the bottoms' data in bottom 0's shape."""
    return [b.data.reshape(bottom[0].shape) for b in bottom]


def weighted_difference(x: Array, target: Array, weight: Array | None = None, *, out: Array | None = None) -> Array:
    """Return weight * (x - target), all of one shape. No weight counts as 1."""
    d: Array = np.subtract(x, target, out=out)
    if weight is not None:
        d *= weight
    return d


def smooth_l1(d: Array, sigma: float = 1.0) -> Array:
    """Return 0.5 (sigma d)^2 where |d| < 1 / sigma^2, else |d| - 0.5 / sigma^2; of d's shape."""
    size = np.abs(d)
    near = np.minimum(size, 1 / sigma**2)
    # With near = size this is the square, with near = 1 / sigma^2 the line. So no branch is needed.
    return np.asarray(sigma**2 * near * (size - 0.5 * near))


def smooth_l1_backward(d: Array, sigma: float = 1.0) -> Array:
    """Return the derivative of smooth_l1: sigma^2 d clipped to [-1, 1]; of d's shape."""
    return np.asarray(np.clip(d, -1 / sigma**2, 1 / sigma**2) * sigma**2)
