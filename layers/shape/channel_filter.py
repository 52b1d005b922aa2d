"""ChannelFilter: Filter with channel-pruning's filter_param: the channels for which the stored selector is not 0.

    y = x's channels c with selector[c] != 0, in order        dx = dy in those channels, 0 in the others

Source: He et al., Channel Pruning (arXiv:1707.06168); ethanhe42/caffe-pro's filter_layer.cpp and .cu, of which the code for
the CPU is not written.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2


class ChannelFilter(Layer):
    """Each bottom without the channels, on filter_param.axis (default 1), whose selector is 0.

    bottom[i]: x (N, C, ...), of one length on the axis. top[i]: y (N, num_output, ...). blob: selector (C,), 1 unless stored;
    it gets no gradient. Raises LayerError for other shapes, num_output 0, and in forward for a selector that keeps another
    number of channels than num_output, as the one that is not stored does unless num_output is C.
    """

    type = "Filter"
    num_bottom = (1, None)
    num_top = (1, None)
    equal_bottom_top = True
    param_block = ("filter_param",)
    weight_names = ("selector",)
    copies = (1, 1)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.filter_param
        if param.num_output < 1:
            raise self.error(f"num_output must be > 0, got {param.num_output}", "filter_param.num_output")
        self.axis = self.axis_of(param.axis, bottom[0], "filter_param.axis")
        self.learn([(bottom[0].shape[self.axis],)], [caffe_pb2.FillerParameter(value=1)])

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        channels = self.blobs[0].count
        for i, (x, y) in enumerate(zip(bottom, top, strict=True)):
            if x.shape[self.axis : self.axis + 1] != (channels,):
                wrong = f"bottom {i} of shape {x.shape} must have the selector's {channels} channels on axis {self.axis}"
                raise self.error(wrong, f"bottom[{i}]")
            y.reshape(*x.shape[: self.axis], self.param.filter_param.num_output, *x.shape[self.axis + 1 :])

    def multiply_adds(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
        return 0

    def selected(self) -> NDArray[np.intp]:
        """The channels that stay. Raises LayerError where they are not num_output."""
        kept, wanted = np.flatnonzero(self.blobs[0].read_data()), self.param.filter_param.num_output
        if len(kept) != wanted:
            wrong = f"its selector keeps {len(kept)} channels, num_output is {wanted}: it needs the stored weights"
            raise self.error(wrong, "filter_param.num_output")
        return kept

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        kept = self.selected()
        for x, y in zip(bottom, top, strict=True):
            np.take(x.data, kept, axis=self.axis, out=y.data)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        kept = self.selected()
        for x, y, wanted in zip(bottom, top, propagate_down, strict=True):
            if wanted:
                x.zero_diff()
                x.diff[(slice(None),) * self.axis + (kept,)] = y.diff
