"""Deconvolution3D: C3D's name for the transpose of Convolution3D. Source: C3D's deconvolution3d_layer.cpp."""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Blob
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.window import Window

from .convolution3d import as_convolution, clip_window


class Deconvolution3D(Deconvolution):
    """Deconvolution's y, with kernels of kernel_depth frames of kernel_size x kernel_size pixels.

    bottom: x (N, C, L, H, W). top: y (N, num_output, L', H', W'). convolution3d_param: as Convolution3D's. blobs: weight (C,
    num_output, kernel_depth, kernel_size, kernel_size), bias (1, 1, 1, 1, num_output).
    Raises LayerError as Deconvolution does, for a bottom without five axes, and for a group.
    """

    type = "Deconvolution3D"
    param_block = ("convolution3d_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.param = as_convolution(self, bottom[0])
        super().setup(bottom, top)

    def _read_window(self) -> Window:
        return clip_window(self)

    def _bias_shape(self) -> tuple[int, ...]:
        return 1, 1, 1, 1, self.num_output
