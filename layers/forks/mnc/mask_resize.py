"""MaskResize: maps resized bilinearly; place i of the output lies at i (input size / output size) of the input.

    y = A x B^T, with the bilinear weights of rows in A (h, H) and of columns in B (w, W); beyond the last pixel, that pixel

Source: Dai et al., MNC (arXiv:1512.04412); caffe-mnc's mask_resize_layer.cu.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer


class MaskResize(Layer):
    """y = A x B^T for each map, bilinear in both directions; dx = A^T dy B.

    bottom: x (N, C, H, W). top: y (N, C, output_height, output_width), of mask_resize_param.
    Raises LayerError when x has not four axes or no pixel, and for a size of 0.
    """

    type = "MaskResize"
    num_bottom = 1
    num_top = 1
    param_block = ("mask_resize_param",)
    weight_names = ()

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.mask_resize_param
        if not (param.output_height and param.output_width):
            raise self.error("needs output_height > 0 and output_width > 0", "mask_resize_param")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, param = bottom[0].shape, self.param.mask_resize_param
        if len(shape) != 4 or not (shape[2] and shape[3]):
            raise self.error(f"x must be (N, C, H, W) with pixels, got shape {shape}", "bottom[0]")
        top[0].reshape(*shape[:2], param.output_height, param.output_width)
        self.rows = weights(shape[2], param.output_height).astype(self.dtype)
        self.columns = weights(shape[3], param.output_width).astype(self.dtype)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[...] = self.rows @ bottom[0].data @ self.columns.T

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            bottom[0].diff[...] = self.rows.T @ top[0].diff @ self.columns


def weights(size: int, output: int) -> Array:
    """What each of size pixels adds to each of output places (output, size)."""
    at = np.arange(output) * (size / output)
    low = np.minimum(at.astype(int), size - 1)
    high, places = np.minimum(low + 1, size - 1), np.arange(output)
    matrix = np.zeros((output, size))
    np.add.at(matrix, (places, low), 1 - (at - low))
    np.add.at(matrix, (places, high), at - low)
    return matrix
