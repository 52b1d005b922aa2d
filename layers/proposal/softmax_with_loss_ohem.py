"""SoftmaxWithLossOHEM: SoftmaxWithLoss that also gives each roi's loss, for hard example mining.

    losses_i = -log(max(p_i[label_i], FLT_MIN))        loss = sum_i losses_i / divisor

Source: softmax_loss_ohem_layer.cpp of R-FCN's Caffe (Shrivastava, Gupta, Girshick, CVPR 2016, section 4).
"""

from __future__ import annotations

from minicaffe.layers.loss.softmax_with_loss import SoftmaxWithLoss


class SoftmaxWithLossOHEM(SoftmaxWithLoss):
    """As SoftmaxWithLoss, with a third top.

    bottom: x (R, C, ...) scores, labels (R, ...). top: loss (); optionally the probabilities, of x's shape; optionally the
    losses before division, of the labels' shape, 0 where ignored. The diffs of the optional tops are not used.
    Raises LayerError as SoftmaxWithLoss.
    """

    type = "SoftmaxWithLossOHEM"
    num_top = (1, 3)
