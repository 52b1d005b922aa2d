"""brocolli's BilinearInterpolate, and Resize, which happynear's Caffe has too: maps resized bilinearly.

Source: inisis/caffe's bilinear_interpolate_layer.cpp and resize_layer.cpp, happynear's util_img.cpp. Positions are float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layers.shape.interp import ClampedTaps, ResizedMaps, Taps
from minicaffe.reads import Axis


class BilinearInterpolate(ResizedMaps):
    """x resized bilinearly: with aligned corners as in Interp (the default), else from pixel centres as in OpenCV.

    bottom: x (N, C, H, W). top: y (N, C, OH, OW): dst_h x dst_w, H or W for a missing one, or scale_factor times H and W,
    rounded down. The fork has no backward, and fixes the size in setup; here backward is the gradient.
    Raises LayerError unless sizes or scale_factor are given, not both, and for sizes below 1.
    """

    type = "BilinearInterpolate"
    param_block = ("bilinear_interpolate_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        param = self.param.bilinear_interpolate_param
        if (param.HasField("dst_h") or param.HasField("dst_w")) == param.HasField("scale_factor"):
            raise self.error("give dst_h and dst_w, or scale_factor", "bilinear_interpolate_param")

    def sizes(self, height: int, width: int) -> tuple[int, int]:
        param = self.param.bilinear_interpolate_param
        if param.HasField("scale_factor"):
            height, width = (self.scaled(size, param.scale_factor, "scale_factor") for size in (height, width))
            return height, width
        return param.dst_h if param.HasField("dst_h") else height, param.dst_w if param.HasField("dst_w") else width

    def taps(self, size: int, out: int) -> Taps:
        return (Taps if self.param.bilinear_interpolate_param.align_corners else ClampedTaps)(size, out)


class CornerTaps(Taps):
    """Taps at i * size / out. A place past the map counts as 0, so that the last ones fade out."""

    @property
    def ratio(self) -> np.float32:
        ratio: np.float32 = np.float32(self.size) / np.float32(self.out)
        return ratio

    def shares(self, dtype: np.dtype[np.floating]) -> tuple[Array, Array]:
        after = self.share.astype(dtype)
        return 1 - after, after * (self.before + 1 < self.size)

    def reads(self, start: int) -> Axis:
        return Axis(self.size, self.out, (start - 1) * self.out + 1, (start + 1) * self.out - 1)


class Resize(ResizedMaps):
    """x resized bilinearly: row i of OH lies at i H / OH. Rows and columns past the map count as 0.

    bottom: x (N, C, H, W). top: y (N, C, OH, OW): height x width, or with is_pyramid_test out_height_scale times H and
    out_width_scale times W, rounded down. Raises LayerError if these are not both given, and for sizes below 1.
    """

    type = "Resize"
    param_block = ("resize_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        param = self.param.resize_param
        if param.is_pyramid_test and not (param.HasField("out_height_scale") and param.HasField("out_width_scale")):
            raise self.error("needs out_height_scale and out_width_scale with is_pyramid_test", "resize_param")
        if not (param.is_pyramid_test or (param.HasField("height") and param.HasField("width"))):
            raise self.error("needs height and width", "resize_param")

    def sizes(self, height: int, width: int) -> tuple[int, int]:
        param = self.param.resize_param
        if param.is_pyramid_test:
            height = self.scaled(height, param.out_height_scale, "out_height_scale")
            return height, self.scaled(width, param.out_width_scale, "out_width_scale")
        return param.height, param.width

    def taps(self, size: int, out: int) -> Taps:
        return CornerTaps(size, out)
