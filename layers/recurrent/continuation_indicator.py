"""ContinuationIndicator: which time steps continue a sequence, for LSTM: 0 for the first, 1 for the others.

Source: crnn.caffe's continuation_indicator_layer.cpp; with a bottom, Deep Detect's (beniz/caffe).
"""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Blob
from minicaffe.layer import Layer


class ContinuationIndicator(Layer):
    """0 for the first time step of every sequence, 1 for the others. No gradient.

    bottom: none, or x, whose length along continuation_indicator_param.axis (default 0) is the number of sequences N. top:
    (T, N), with T time_step, and N batch_size if there is no bottom.
    Raises LayerError when T or N is not given, or N beside a bottom, and for an axis out of range.
    """

    type = "ContinuationIndicator"
    num_bottom = (0, 1)
    num_top = 1
    index_bottoms = (0,)
    param_block = ("continuation_indicator_param",)
    weight_names = ()
    has_gradient = False

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.continuation_indicator_param
        if not param.time_step:
            raise self.error("needs time_step > 0", "continuation_indicator_param")
        if not bottom and not param.batch_size:
            raise self.error("needs batch_size > 0, or a bottom", "continuation_indicator_param")
        if bottom and param.batch_size:
            wrong = "its bottom says how many sequences there are: give no batch_size"
            raise self.error(wrong, "continuation_indicator_param.batch_size")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, sequences = self.param.continuation_indicator_param, self.param.continuation_indicator_param.batch_size
        if bottom:
            sequences = bottom[0].shape[self.axis_of(param.axis, bottom[0], "continuation_indicator_param.axis")]
        top[0].reshape(param.time_step, sequences)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[:1] = 0
        top[0].data[1:] = 1
