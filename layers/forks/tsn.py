"""ColorConv: images from one colour space to another, of the Caffe of temporal segment networks.

    R G B  <->  X Y Z: a matrix of linear values, with sRGB's gamma        X Y Z  <->  L a b: CIE's, white (0.95074, 1, 1.08883)
    Gray = 0.2126729 R + 0.7151522 G + 0.0721750 B

R, G, B and Gray are from 0 to 255, X, Y and Z about 0 to 1, L from 0 to 100. BGR is RGB in the other order.
Source: yjxiong/caffe's color_conv_layer.cpp (Xiong, 2016), whose CPU version converts the first image alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layer import Unary
from minicaffe.proto import caffe_pb2
from minicaffe.reads import Axis

Space = caffe_pb2.ColorConvParameter
RGB_TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]])
XYZ_TO_RGB = np.array(
    [[3.2404542, -1.5371385, -0.4985314], [-0.9692660, 1.8760108, 0.0415560], [0.0556434, -0.2040259, 1.0572252]]
)
WHITE = np.array([0.95074, 1, 1.08883])
SMALL, SLOPE = 0.008867, 903.3
"""The least part of the white whose lightness is a cube root, and the slope below it."""
SMALL_ROOT = 0.206896


class ColorConv(Unary):
    """Images in the colour space `output` from images in `input`: BGR (the default of both), RGB, XYZ, Lab or Gray.

    One space is copied.

    bottom: x (N, 3, H, W), (N, 1, H, W) of Gray. top: y, the same for `output`. No gradient, as in the original.
    Raises LayerError for another number of channels, and for a pair that the original does not convert: Gray to XYZ or Lab, XYZ
    or Lab to Gray.
    """

    type = "ColorConv"
    param_block = ("color_conv_param",)
    has_gradient = False
    copies = (3, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.color_conv_param
        self.names = Space.ColorSpace.Name(param.input), Space.ColorSpace.Name(param.output)
        if "Gray" in self.names and {*self.names} & {"XYZ", "Lab"}:
            raise self.error(f"converts no {self.names[0]} to {self.names[1]}", "color_conv_param.output")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, (given, wanted) = bottom[0].shape, (1 if name == "Gray" else 3 for name in self.names)
        if len(shape) != 4 or shape[1] != given:
            raise self.error(f"x must be (N, {given}, H, W) in {self.names[0]}, got shape {shape}", "bottom[0]")
        top[0].reshape(shape[0], wanted, *shape[2:])

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        return (Axis(),) * 2

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        given, wanted = ("RGB" if name == "BGR" else name for name in self.names)
        x = bottom[0].data[:, ::-1] if self.names[0] == "BGR" else bottom[0].data
        y = converted(x, given, wanted)
        top[0].data[...] = y[:, ::-1] if self.names[1] == "BGR" else y


def converted(x: Array, given: str, wanted: str) -> Array:
    """Return images (N, C, H, W) of one space, RGB, XYZ, Lab or Gray, in another."""
    if given == wanted:
        return x
    if given == "Gray":
        return np.repeat(x, 3, axis=1)
    if wanted == "Gray":
        return mixed(x, RGB_TO_XYZ[1:2])
    order = ("RGB", "XYZ", "Lab")
    at, end = order.index(given), order.index(wanted)
    for i in range(at, end):
        x = FORTH[i](x)
    for i in range(at, end, -1):
        x = BACK[i - 1](x)
    return x


def mixed(x: Array, matrix: Array) -> Array:
    """Return images (N, D, H, W) whose channels are matrix (D, C) times those of x (N, C, H, W)."""
    n, channels, height, width = x.shape
    mixture: Array = matrix.astype(x.dtype) @ x.reshape(n, channels, height * width)
    return mixture.reshape(n, len(matrix), height, width)


def rgb_to_xyz(x: Array) -> Array:
    x = x / 255
    linear = np.where(x <= 0.04045, x / 12.92, ((np.maximum(x, 0.04045) + 0.055) / 1.055) ** 2.4)
    return mixed(linear, RGB_TO_XYZ)


def xyz_to_rgb(x: Array) -> Array:
    linear = mixed(x, XYZ_TO_RGB)
    curved = 1.055 * np.maximum(linear, 0.0031308) ** (1 / 2.4) - 0.055
    return 255 * np.where(linear <= 0.0031308, 12.92 * linear, curved)


def xyz_to_lab(x: Array) -> Array:
    part = x / WHITE.astype(x.dtype)[:, None, None]
    root = np.where(part > SMALL, np.cbrt(part), (SLOPE * part + 16) / 116)
    fx, fy, fz = root[:, 0], root[:, 1], root[:, 2]
    return np.stack([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)], axis=1)


def lab_to_xyz(x: Array) -> Array:
    fy = (x[:, 0] + 16) / 116
    root = np.stack([x[:, 1] / 500 + fy, fy, fy - x[:, 2] / 200], axis=1)
    part = np.where(root > SMALL_ROOT, root**3, (116 * root - 16) / SLOPE)
    xyz: Array = part * WHITE.astype(x.dtype)[:, None, None]
    return xyz


FORTH: tuple[Callable[[Array], Array], ...] = (rgb_to_xyz, xyz_to_lab)
BACK: tuple[Callable[[Array], Array], ...] = (xyz_to_rgb, lab_to_xyz)
"""The steps between neighbours of RGB, XYZ and Lab."""
