"""ModulatedDeformableConvolution: a deformable convolution whose samples each have a factor, the mask.

    y[m, o] = bias[m] + sum over c, taps of weight[m, c, tap] * mask[g, tap, o] * x[c] at (o * stride - pad + tap * dilation
              + offset[g, tap, o])

x between pixels is bilinear, with zeros around the map; g is c's deformable group. DeformableConvolution ends otherwise: on a
map with a rim of zeros, one pixel wide, both have the same samples. Source: Zhu et al., Deformable ConvNets v2 (2018);
modulated_deformable_conv_layer.cpp and modulated_deformable_im2col.cu of zhanglonghao1992/Deformable-ConvNets-v1-v2-caffe.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from minicaffe.blob import Blob

from .deformable_convolution import DeformableConvolution


class ModulatedDeformableConvolution(DeformableConvolution):
    """Convolution with moved and weighted taps (see the module's formula).

    bottom: x (N, C, H, W); offset (N, deformable_group * kh * kw * 2, OH, OW) in pixels of the map, of each tap first down,
    then to the right; mask (N, deformable_group * kh * kw, OH, OW). top: y (N, num_output, OH, OW). All bottoms get gradients.
    blobs: weight (num_output, C / group, kh, kw), bias (num_output).
    Raises LayerError as DeformableConvolution, and when the mask has another shape.
    """

    type = "ModulatedDeformableConvolution"
    num_bottom = 3
    param_block: ClassVar[tuple[str, ...]] = ("modulated_deformable_convolution_param",)
    rim = 1

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        count, moves, *output = bottom[1].shape
        if bottom[2].shape != (wanted := (count, moves // 2, *output)):
            what = "(N, deformable_group * kernel_h * kernel_w, output height, output width)"
            raise self.error(f"the mask must have shape {wanted}, {what}, got {bottom[2].shape}", "bottom[2]")

    def working_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> int:
        """As DeformableConvolution, with all maps in a rim, an image's mask, and samples to multiply their gradient by."""
        count, channels, *size = bottom[0].shape
        rimmed = count * channels * math.prod(n + 2 for n in size) * (1 if propagate_down is None else 2)
        return super().working_bytes(bottom, top, propagate_down) + (rimmed + 2 * bottom[2].count) * self.dtype.itemsize
