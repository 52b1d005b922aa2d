"""DepthwiseConvolution: a convolution with one group for each channel.

    y[c J + j] = bias[c J + j] + sum over taps of weight[c J + j, 0, taps] * x[c, o * stride - pad + taps * dilation]
Source: the layer of the MobileNet and ShuffleNet forks of Caffe, where it is also called ConvolutionDepthwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.forked import LayoutFromWeights

from .convolution import Convolution


class DepthwiseConvolution(LayoutFromWeights, Convolution):
    """Convolution with one group for each channel. ConvolutionDepthwise is the same.

    bottom: x (N, C, *map), one or more of the same shape. top: y (N, num_output, *windows), one for each bottom;
    num_output is a multiple of C. convolution_param as Convolution's; group need not be given. Another group than C has no
    effect on ConvolutionDepthwise. DepthwiseConvolution stores weight (num_output, C / group, *kernel) then, and its code reads
    the first num_output * kernel values: the layer takes these from stored weights, with a warning.
    blobs: weight (num_output, 1, *kernel), bias (num_output).
    Raises LayerError as Convolution does, and for a group of DepthwiseConvolution that does not divide C.
    """

    type = "DepthwiseConvolution"
    fuses = True

    def _group(self, channels: int) -> int:
        given = self.param.convolution_param.group
        if given in (1, channels):
            return channels
        field = "convolution_param.group"
        if self.type != "ConvolutionDepthwise" and (given < 1 or channels % given or self.num_output % given):
            counts = f"channels ({channels}) and num_output ({self.num_output})"
            raise self.error(f"{counts} must be divisible by group ({given})", field)
        self.warn(f"group {given} has no effect: as in the fork's code, each of the {channels} channels is a group", field)
        return channels

    def takes_part_of(self, i: int, shape: Sequence[int]) -> bool:
        group, (filters, _, *kernel) = self.param.convolution_param.group, self._weight_shape()
        wide = (filters, self.channels // max(group, 1), *kernel)
        return i == 0 and self.type != "ConvolutionDepthwise" and group > 1 and tuple(shape) == wide
