"""Products of a blob with one number for each map, each pixel or each channel."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.launches import launch_planes, launch_sums
from minicaffe.layer import Layer
from minicaffe.reads import Axis, same_places
from minicaffe.threads import Index, each_block


class BroadcastProduct(Layer):
    """y = x * s, where s takes the shape that factor_shape returns and is repeated along its axes of 1.

    bottom: x, s. top: y (x's shape).
    """

    num_bottom = 2
    num_top = 1
    weight_names = ()
    copies = (0, 1)
    factor: tuple[int, ...]
    """s's shape, with an axis of 1 for each of x's that it is repeated along."""

    @abstractmethod
    def factor_shape(self, x: tuple[int, ...], s: tuple[int, ...]) -> tuple[int, ...]:
        """Return factor for the bottoms' shapes. Raises LayerError if they do not match."""

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.factor = self.factor_shape(bottom[0].shape, bottom[1].shape)
        top[0].reshape(bottom[0].shape)

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        return same_places(bottom[b].shape, top[t].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        _multiply(bottom[0].data, bottom[1].data.reshape(self.factor), top[0].data)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        (x, s), dy = bottom, top[0].diff
        if propagate_down[1]:
            axes = tuple(axis for axis, (whole, own) in enumerate(zip(x.shape, self.factor)) if own != whole)
            s.diff[...] = (dy * x.data).sum(axis=axes).reshape(s.shape)
        if propagate_down[0]:
            _multiply(dy, s.data.reshape(self.factor), x.diff)


def _multiply(x: Array, factor: Array, y: Array) -> None:
    """Compute y = x * factor, block by block. factor has x's axes, some of length 1."""
    whole = np.broadcast_to(factor, x.shape)

    def step(index: Index) -> None:
        np.multiply(x[index], whole[index], out=y[index])

    each_block(x.shape, step)


class Axpy(Layer):
    """out[n, c, ...] = a[n, c] x[n, c, ...] + y[n, c, ...]; da[n, c] = the sum of dout x, dx = a dout, dy = dout.

    Source: SENet's axpy_layer.hpp (Hu et al., 2018).

    bottom: a (N, C) or (N, C, 1, ...), x (N, C, ...), y (x's shape). top: out (x's shape).
    Raises LayerError when x has fewer than two axes, a lacks one number for each map, or y and x differ in shape.
    """

    type = "Axpy"
    num_bottom = 3
    num_top = 1
    weight_names = ()
    copies = (0, 0)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        a, x, y = (blob.shape for blob in bottom)
        if len(x) < 2:
            raise self.error(f"x must have at least two axes, got shape {x}", "bottom[1]")
        if a != x[:2] + (1,) * (len(a) - 2):
            raise self.error(f"a must have one number for each map, shape {x[:2]}, got {a}", "bottom[0]")
        if y != x:
            raise self.error(f"x and y must have the same shape, got {x} and {y}", "bottom[2]")
        top[0].reshape(x)
        self.maps, self.positions = x[0] * x[1], math.prod(x[2:])

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        return same_places(bottom[b].shape, top[t].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        a = bottom[0].data.reshape(self.maps, 1)
        x, y, out = (blob.data.reshape(self.maps, self.positions) for blob in (*bottom[1:], *top))
        np.multiply(a, x, out=out)
        out += y

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        a, x, y = bottom
        dout = top[0].diff.reshape(self.maps, self.positions)
        if propagate_down[0]:
            np.einsum("mp,mp->m", dout, x.data.reshape(dout.shape), out=a.diff.reshape(-1))
        if propagate_down[1]:
            np.multiply(dout, a.data.reshape(self.maps, 1), out=x.diff.reshape(dout.shape))
        if propagate_down[2]:
            y.diff[...] = top[0].diff

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        a, x, y = (blob.device_data("read") for blob in bottom)
        launch_planes("axpy.axpy", self.dtype, self.maps, self.positions, a, x, y, top[0].device_data("write"))

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        a, x, y = bottom
        dout = top[0].device_diff("read")
        if propagate_down[0]:
            pointers = dout, x.device_data("read"), a.device_diff("write")
            launch_sums("axpy.axpy_sums", self.dtype, self.maps, self.positions, self.positions, *pointers)
        dx = x.device_diff("write") if propagate_down[1] else 0
        dy = y.device_diff("write") if propagate_down[2] else 0
        launch_planes("axpy.axpy_backward", self.dtype, self.maps, self.positions, a.device_data("read"), dout, dx, dy)


class BroadcastMul(BroadcastProduct):
    """y[n, c, ...] = x[n, c, ...] * s[n, c].

    Source: beniz/caffe's broadcast_mul_layer.cpp.

    bottom: x (N, C, ...), s (N, C) or (N, C, 1, ...). top: y (N, C, ...).
    Raises LayerError when x has fewer than two axes, and when s is not one number for each map.
    """

    type = "BroadcastMul"

    def factor_shape(self, x: tuple[int, ...], s: tuple[int, ...]) -> tuple[int, ...]:
        if len(x) < 2 or s != x[:2] + (1,) * (len(s) - 2):
            raise self.error(f"bottoms x (N, C, ...) and s (N, C) are needed, got shapes {x} and {s}", "bottom[1]")
        return x[:2] + (1,) * (len(x) - 2)


class ChannelScale(BroadcastProduct):
    """y[n, c, ...] = x[n, c, ...] * s[n, ...].

    Source: happynear's channel_scale_layer.cpp.

    bottom: x (N, C, ...), s (N, ...) or (N, 1, ...). top: y (N, C, ...).
    Raises LayerError for other shapes; for global_scale, whose number is not learned but set from outside; and for do_forward,
    do_backward_feature and do_backward_scale of false, whose backward is not the gradient.
    """

    type = "ChannelScale"
    param_block = ("channel_scale_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.channel_scale_param
        if param.global_scale:
            raise self.error("global_scale is not built", "channel_scale_param.global_scale")
        if not (param.do_forward and param.do_backward_feature and param.do_backward_scale):
            raise self.error("do_forward, do_backward_feature and do_backward_scale must be true", "channel_scale_param")

    def factor_shape(self, x: tuple[int, ...], s: tuple[int, ...]) -> tuple[int, ...]:
        if len(x) < 2 or s[:1] != x[:1] or math.prod(s) != x[0] * math.prod(x[2:]):
            raise self.error(f"bottoms x (N, C, ...) and s (N, ...) are needed, got shapes {x} and {s}", "bottom[1]")
        return x[0], 1, *x[2:]


class SpatialProduct(BroadcastProduct):
    """y[n, c, ...] = x[n, c, ...] * s[n, 0, ...]. MaskPooling is the same.

    Source: hszhao/PSPNet's spatial_product_layer.cpp; MNC (arXiv:1512.04412), where it is called MaskPooling.

    bottom: x (N, C, ...), s (N, 1, ...). top: y (N, C, ...).
    Raises LayerError when x has fewer than two axes, and when s is not one map for each image.
    """

    type = "SpatialProduct"

    def factor_shape(self, x: tuple[int, ...], s: tuple[int, ...]) -> tuple[int, ...]:
        if len(x) < 2 or s != (x[0], 1, *x[2:]):
            raise self.error(f"bottoms x (N, C, ...) and s (N, 1, ...) are needed, got shapes {x} and {s}", "bottom[1]")
        return s

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, s, y = bottom[0], bottom[1].device_data("read"), top[0].device_data("write")
        self.launch("spatial_product.product", x.count, x.count, *_planes(x), x.device_data("read"), s, y)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        (x, s), dy = bottom, top[0].device_diff("read")
        if propagate_down[0]:
            to = s.device_data("read"), x.device_diff("write")
            self.launch("spatial_product.product", x.count, x.count, *_planes(x), dy, *to)
        if propagate_down[1]:
            to = x.device_data("read"), s.device_diff("write")
            self.launch("spatial_product.map_gradient", s.count, s.count, *_planes(x), dy, *to)


def _planes(x: Blob) -> tuple[int, int]:
    """Return the number of channels of x, and the number of values of each."""
    return x.shape[1], math.prod(x.shape[2:])
