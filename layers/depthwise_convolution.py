"""DepthwiseConvolution: a convolution with one group for each channel.

    y[c J + j] = bias[c J + j] + sum over taps of weight[c J + j, 0, taps] * x[c, o * stride - pad + taps * dilation]
Source: the layer of the MobileNet and ShuffleNet forks of Caffe, where it is also called ConvolutionDepthwise.
"""

from __future__ import annotations

from .convolution import Convolution


class DepthwiseConvolution(Convolution):
    """Convolution with one group for each channel. ConvolutionDepthwise is the same.

    bottom: x (N, C, *map), one or more of the same shape. top: y (N, num_output, *windows), one for each bottom;
    num_output is a multiple of C. convolution_param as Convolution's; group need not be given.
    blobs: weight (num_output, 1, *kernel), bias (num_output).
    Raises LayerError as Convolution does, and when a group is given that is neither 1 nor C.
    """

    type = "DepthwiseConvolution"
    depthwise = True

    def _group(self, channels: int) -> int:
        given = self.param.convolution_param.group
        if given not in (1, channels):
            raise self.error(f"group is the number of channels, {channels}, here; got {given}", "convolution_param.group")
        return channels
