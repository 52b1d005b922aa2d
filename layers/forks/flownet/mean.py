"""Mean: a mean, given in the prototxt or a file, added to or subtracted from images.

    y = output_scale (input_scale x -+ mean_scale mean)

Source: FlowNet 2's mean_layer.cpp (Ilg et al., 2017).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.errors import Error
from minicaffe.files import granted
from minicaffe.formats.weights import read_binaryproto
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

SUBTRACT = caffe_pb2.MeanParameter.SUBTRACT


class Mean(Layer):
    """y = output_scale (input_scale x - mean_scale mean), with + for the operation ADD; dx = output_scale input_scale dy.

    bottom: x (N, C, H, W). top: y (the same shape). mean_param: value, one number for each channel, or file, a mean image
    (C, H, W) of a binaryproto.
    Raises LayerError for both or none of these, a mean of other channels or another size, and a file that cannot be read.
    """

    type = "Mean"
    num_bottom = 1
    num_top = 1
    param_block = ("mean_param",)
    weight_names = ()
    keeps_places = True
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.mean_param
        if bool(param.file) == bool(param.value):
            raise self.error("give either a file or one value for each channel", "mean_param")
        if not param.HasField("operation"):
            raise self.error("operation is missing: ADD or SUBTRACT", "mean_param")
        if not param.file:
            self.mean = np.array(param.value, self.dtype).reshape(1, -1, 1, 1)
            return
        try:
            self.mean = np.asarray(read_binaryproto(granted(param.file)), self.dtype)
        except (Error, OSError) as error:
            raise self.error(f"file: {error}", "mean_param.file") from error
        self.mean = self.mean.reshape(1, *self.mean.shape[-3:])

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, mean = bottom[0].shape, self.mean.shape
        if len(shape) != 4 or mean[1] != shape[1]:
            raise self.error(f"x must be (N, C, H, W) with the mean's {mean[1]} channels, got shape {shape}", "bottom[0]")
        if mean[2:] not in (shape[2:], (1, 1)):
            raise self.error(f"the mean has {mean[2]} x {mean[3]} pixels, x has {shape[2]} x {shape[3]}", "mean_param.file")
        top[0].reshape(shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, y = self.param.mean_param, top[0].data
        sign = -1 if param.operation == SUBTRACT else 1
        np.multiply(bottom[0].data, self.dtype.type(param.input_scale), out=y)
        y += self.mean * self.dtype.type(sign * param.mean_scale)
        y *= self.dtype.type(param.output_scale)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            param = self.param.mean_param
            np.multiply(top[0].diff, self.dtype.type(param.input_scale * param.output_scale), out=bottom[0].diff)
