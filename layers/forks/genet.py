"""CuDNNBatchNorm: GENet's batch normalisation with a learnt scale and bias, as cuDNN computes it.

Source: hujie-frank/GENet's cudnn_batch_norm_layer.cu (Hu et al., 2018), which runs on a GPU only.
"""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Blob
from minicaffe.layers.norm.bn import BN, PSPNET
from minicaffe.proto import caffe_pb2


class CuDNNBatchNorm(BN):
    """y = slope * (x - mean) / sqrt(var + eps) + bias, channel by channel (axis 1).

    TRAIN takes mean and var (biased) from the batch. It keeps m * mean + (1 - m) * batch mean for TEST, m being the momentum,
    and the same of the variance, there unbiased. frozen takes the stored ones in TRAIN too, and learns nothing.

    bottom: x (N, C, ...). top: y (x's shape; may be in place). blobs: slope (scale_filler's), bias, mean, variance, each
    (1, C, 1, 1).
    scale_filler and bias_filler default to 0, so a net without weights needs them.
    Raises LayerError for fewer than two axes, another number of channels, and a negative eps or momentum.
    """

    type = "CuDNNBatchNorm"
    num_top = 1
    param_block = ("cudnn_batch_norm_param",)
    kinds = ()
    unbiased = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        given, param = self.param.cudnn_batch_norm_param, caffe_pb2.LayerParameter()
        param.CopyFrom(self.param)
        param.bn_param.CopyFrom(
            caffe_pb2.BNParameter(
                frozen=given.frozen,
                momentum=given.momentum,
                eps=given.eps,
                slope_filler=given.scale_filler,
                bias_filler=given.bias_filler,
            )
        )
        self.param = param
        super().setup(bottom, top)

    def _kind_given(self, tops: int) -> str:
        return PSPNET

    def adopt_layout(self, shapes: Sequence[Sequence[int]]) -> bool:
        return False
