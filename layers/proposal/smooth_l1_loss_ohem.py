"""SmoothL1LossOHEM: the box loss that also gives each roi's loss, normalized as loss_param says.

    d = w * (x - target)        losses_i = sum_c f(d_ic)        loss = sum_i losses_i / divisor
    f(d) = 0.5 d^2 where |d| < 1, else |d| - 0.5

Source: smooth_l1_loss_ohem_layer of R-FCN's Caffe (where it is named SmoothL1Loss in some trees).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.loss import lanes_of, launch_loss
from minicaffe.layers.loss.loss import DifferenceLoss, device_diffs, put_opposite
from minicaffe.layers.loss.loss_bottoms import check_same_shape
from minicaffe.layers.loss.loss_normalization import read_normalization
from minicaffe.layers.loss.smooth_l1_loss import smooth_l1, smooth_l1_backward, weighted_difference


class SmoothL1LossOHEM(DifferenceLoss):
    """loss = sum(f(w * (x - target))) / divisor.

    bottom: x (R, C, H, W), target, optionally w, all of x's shape, where (R, 8) is (R, 8, 1, 1).
    top: loss (); optionally the losses before division, summed over channels (R, 1, H, W), whose diff is not used.
    loss_param: normalization (FULL and VALID: R*H*W, BATCH_SIZE: R, PRE_FIXED, NONE), normalize, pre_fixed_normalizer.
    Both x and target get gradients. As in the original, the loss counts only with an explicit loss_weight.
    Raises LayerError for other shapes.
    """

    type = "SmoothL1LossOHEM"
    num_bottom = (2, 3)
    num_top = (1, 2)
    is_loss = False
    index_bottoms = (2,)
    param_block = ("loss_param",)
    copies = (5, 2)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        self.normalization = read_normalization(self.param.loss_param)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        for i in range(1, len(bottom)):
            check_same_shape(self, bottom, i)
        x = bottom[0]
        self.difference.reshape(x.num, x.channels, x.height, x.width)
        if len(top) > 1:
            top[1].reshape(x.num, 1, x.height, x.width)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        d = weighted_difference(*self._arrays(bottom), out=self.difference.data)
        losses = smooth_l1(d).sum(axis=1, keepdims=True)  # (R, 1, H, W): BoxAnnotatorOHEM ranks these
        top[0].data[...] = losses.sum(dtype=np.float64) / self._divisor(bottom[0])
        if len(top) > 1:
            top[1].data[...] = losses

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, positions = self.difference.shape, bottom[0].num * bottom[0].height * bottom[0].width
        inner = shape[2] * shape[3]
        lanes = lanes_of(inner)
        arrays = [blob.device_data("read") for blob in bottom] + [0] * (3 - len(bottom))
        arrays += [self.difference.device_data("write"), top[1].device_data("write") if len(top) > 1 else 0]
        given = (positions, shape[1], inner, lanes, *arrays)
        divisor = self._divisor(bottom[0])
        launch_loss("smooth_l1_loss.smooth_l1_positions", self.dtype, positions * lanes, *given, loss=top[0], fixed=divisor)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dx = smooth_l1_backward(self.difference.data)
        for weight in self._arrays(bottom)[2:]:
            dx *= weight
        dx *= float(top[0].diff.item()) / self._divisor(bottom[0])
        put_opposite(dx.reshape(bottom[0].shape), propagate_down, bottom)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        count, divisor = bottom[0].count, self._divisor(bottom[0])
        weight = bottom[2].device_data("read") if len(bottom) > 2 else 0
        given = (count, self.difference.device_data("read"), weight, 0, 1.0, 1.0, top[0].device_diff("read"), divisor)
        self.launch("smooth_l1_loss.smooth_l1_loss_backward", count, *given, *device_diffs(bottom[:2], propagate_down))

    def _arrays(self, bottom: Sequence[Blob]) -> list[Array]:
        """The bottoms' data (R, C, H, W)."""
        return [b.data.reshape(self.difference.shape) for b in bottom]

    def _divisor(self, x: Blob) -> float:
        positions = x.num * x.height * x.width
        return self.normalization.divisor(images=x.num, positions=positions, valid=positions)
