"""The three products of a convolution on the GPU, on addresses: forward, gradient of the data, gradient of the weights.

    columns = windows of x; y = weight columns; dx = windows added back from weight^T dy; dweight += dy columns^T

A 1x1 convolution needs no columns; a depthwise one has kernels without them (depthwise_convolution.cu). The others are cuDNN's
where it is installed and takes them (cudnn.py), else the columns of several images lie side by side, (C * taps, images *
windows): one im2col and one (batched) product for as many images as WORKSPACE bytes hold, or a part of one image's windows at a
time. Every sum has the same order on every run. DeviceEpilogue applies what follows a convolution in one launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.blob import Blob
from minicaffe.cuda import cudnn
from minicaffe.cuda.blas import Matrix, gemm, tf32_allowed
from minicaffe.cuda.device import current, launch
from minicaffe.cuda.launches import launch_planes, launch_sums
from minicaffe.errors import DeviceError

if TYPE_CHECKING:
    from minicaffe.layers.conv.window import Window


@dataclass(frozen=True)
class DeviceEpilogue:
    """relu((x + bias - mean) / std * scale + shift + addend) on the GPU, channel by channel. Steps that are None are skipped.

    One launch, which reads the vectors where they are, on the device, and rounds each number as the layers' own kernels do: the
    results have the same bits as layer by layer. (The CPU's Epilogue folds them into one scale and one shift.)

    sums: BatchNorm's mean sum (C,), variance sum (C,) and factor (1,); inverse_std (C,): where 1 / sqrt(var + eps) goes, for
    its backward; scale, shift: Scale's (C,); addend: Bias's (C,); negative_slope: ReLU's, 1 without one.
    """

    sums: tuple[Blob, Blob, Blob] | None = None
    eps: float = 0.0
    inverse_std: Blob | None = None
    scale: Blob | None = None
    shift: Blob | None = None
    addend: Blob | None = None
    negative_slope: float = 1.0

    def __call__(self, dtype: DTypeLike, shape: tuple[int, ...], x: int, y: int, bias: int = 0) -> None:
        """Run the launch.

        x, y: addresses of arrays (N, C, ...) of this shape, maybe one; bias: of a vector (C,), or 0.
        """
        sums = [blob.device_data("read") for blob in self.sums] if self.sums else [0, 0, 0]
        inverse_std = self.inverse_std.device_data("write") if self.inverse_std else 0
        vectors = (_address(blob) for blob in (self.scale, self.shift, self.addend))
        sizes = shape[0] * shape[1], math.prod(shape[2:]), shape[1]
        arguments = x, bias, *sums, self.eps, inverse_std, *vectors, self.negative_slope, y
        launch_planes("epilogue.epilogue", dtype, *sizes, *arguments)


def _address(blob: Blob | None) -> int:
    return 0 if blob is None else blob.device_data("read")


WORKSPACE = 64 << 20
"""Approximate bytes of columns made at a time (at least one window of one image)."""

MOST_AXES = 3
"""Most axes of the maps."""

MANY, FEW = 256, 8
"""With at least MANY channels, im2col and a product in float32 are faster than cuDNN. Gradients also are with fewer than
FEW."""

FARTHEST = 1 << 29
"""Greatest extent, padding and stride of a window, so that sums of them fit 32 bits."""

SMALL = 4096
"""Below this number of windows, a weight's gradient joins the images of a batch in one product."""

Product = Callable[["Maps", int, int, int], None]
"""A function of the sizes, the addresses of two factors and the address of the product: convolve, or one of its two
gradients."""


@dataclass(frozen=True)
class Maps:
    """x (count, channels, *spatial), y (count, outputs, *windows), weight (outputs, channels / group, *kernel).

    What follows from these is computed once: a layer keeps the Maps of a shape. Raises DeviceError for windows that reach
    farther than FARTHEST.
    """

    dtype: np.dtype[Any]
    window: Window
    group: int
    count: int
    channels: int
    outputs: int
    spatial: tuple[int, ...]

    def __post_init__(self) -> None:
        window = self.window
        if (reach := max(*window.extent, *window.pad, *window.stride)) > FARTHEST:
            raise DeviceError(f"a kernel's extent, a pad or a stride is {reach}, and the GPU's kernels take at most {FARTHEST}")

    @cached_property
    def pixels(self) -> int:
        """Return the pixels of x's maps."""
        return math.prod(self.spatial)

    @cached_property
    def windows(self) -> int:
        """Return the pixels of y's maps."""
        return math.prod(self.window.output(self.spatial))

    @cached_property
    def taps(self) -> int:
        """Return the numbers of one channel under a window."""
        return math.prod(self.window.kernel)

    @cached_property
    def rows(self) -> int:
        """Return the rows of the columns' matrix, of all groups."""
        return self.channels * self.taps

    @cached_property
    def block(self) -> tuple[int, int]:
        """Return a group's outputs and rows: the shape of its matrix of weights."""
        return self.outputs // self.group, self.rows // self.group

    @cached_property
    def depthwise(self) -> bool:
        """Return whether every channel is a group."""
        return self.group == self.channels > 1

    @cached_property
    def single(self) -> bool:
        """Return whether y is one matrix product: a 1x1 convolution of maps of one pixel."""
        return self.window.pointwise and self.windows == 1

    @cached_property
    def depthwise_sizes(self) -> tuple[int, ...]:
        """Return the last arguments of the kernels of depthwise_convolution.cu."""
        return self.channels, self.outputs // self.channels, *self.geometry

    @cached_property
    def geometry(self) -> tuple[int, ...]:
        """Return the members of struct Window of window.cuh: 3 axes, the first ones of length 1 if the maps have fewer."""
        w, missing = self.window, MOST_AXES - len(self.spatial)
        sizes = (self.spatial, w.output(self.spatial), w.kernel, w.stride, w.pad, w.dilation)
        return tuple(n for fill, axes in zip((1, 1, 1, 1, 0, 1), sizes) for n in ((fill,) * missing + tuple(axes)))

    @cached_property
    def by_cudnn(self) -> cudnn.Convolution | None:
        """Return the convolution for cuDNN, or None if it does not compute it.

        1x1 ones are products already, without columns.
        """
        if self.dtype != np.float32 or len(self.spatial) != 2 or self.window.pointwise or not self.count:
            return None
        (h, w), (oh, ow), (kh, kw) = self.spatial, self.window.output(self.spatial), self.window.kernel
        x, weight = (self.count, self.channels, h, w), (self.outputs, self.channels // self.group, kh, kw)
        return cudnn.Convolution(
            x, weight, (self.count, self.outputs, oh, ow), self.window.pad, self.window.stride, self.window.dilation
        )

    def address(self, start: int, elements: int) -> int:
        """Return the address `elements` elements after start."""
        return start + elements * self.dtype.itemsize


def convolve(maps: Maps, x: int, weight: int, y: int) -> None:
    """Compute y = x convolved with weight. y is overwritten."""
    if maps.depthwise:
        count = maps.count * maps.outputs * maps.windows
        launch("depthwise_convolution.convolve", maps.dtype, count, count, x, weight, y, *maps.depthwise_sizes)
    elif maps.single:
        m, k = maps.block  # group g reads k numbers of each row of x and writes m of each row of y
        of_x, of_y = Matrix(x, maps.channels, stride=k), Matrix(y, maps.outputs, stride=m)
        gemm(maps.dtype, (maps.count, m, k), of_x, Matrix(weight, k, True, m * k), of_y, batch=maps.group)
    elif not _by_cudnn("forward", maps, x, weight, y):
        for part in _parts(maps):
            columns, ld, stride = part.columns(x)
            of_y = Matrix(part.of_y(y), maps.windows, stride=maps.outputs * maps.windows)
            _multiply(part, weight, False, Matrix(columns, ld, stride=stride), of_y)


def data_gradient(maps: Maps, dy: int, weight: int, dx: int) -> None:
    """Compute dx from dy: convolve's transpose. dx is overwritten."""
    if maps.depthwise:
        count = maps.count * maps.channels * maps.pixels
        launch("depthwise_convolution.data_gradient", maps.dtype, count, count, dy, weight, dx, *maps.depthwise_sizes)
    elif maps.single:
        m, k = maps.block
        of_dy, of_dx = Matrix(dy, maps.outputs, stride=m), Matrix(dx, maps.channels, stride=k)
        gemm(maps.dtype, (maps.count, k, m), of_dy, Matrix(weight, k, stride=m * k), of_dx, batch=maps.group)
    elif not _by_cudnn("data", maps, dy, weight, dx):
        for part in _parts(maps):
            of_dy = Matrix(part.of_y(dy), maps.windows, stride=maps.outputs * maps.windows)
            columns, ld, stride = part.place(dx)
            _multiply(part, weight, True, of_dy, Matrix(columns, ld, stride=stride))
            if not maps.window.pointwise:
                part.add_columns(columns, dx, ld, stride)


def add_weight_gradient(maps: Maps, x: int, dy: int, dweight: int) -> None:
    """Add the gradient from x and dy to dweight."""
    m, k = maps.block
    of_weight = Matrix(dweight, k, stride=m * k)
    if maps.depthwise:
        numbers, arrays = maps.count * maps.windows, (x, dy, dweight)
        kernel = "depthwise_convolution.weight_gradient"
        launch_sums(kernel, maps.dtype, m * k * maps.group, numbers, numbers, *arrays, *maps.depthwise_sizes)
    elif maps.single:
        of_dy = Matrix(dy, maps.outputs, transposed=True, stride=m)
        gemm(maps.dtype, (m, k, maps.count), of_dy, Matrix(x, maps.channels, stride=k), of_weight, beta=1, batch=maps.group)
    elif not _by_cudnn("weight", maps, x, dy, dweight):
        for part in _parts(maps, side_by_side=maps.windows < SMALL):
            columns, ld, stride = part.columns(x)
            gradient, dy_ld, dy_stride = part.gradient(dy)
            inner = part.images * part.windows if part.side_by_side else part.windows
            for i in range(1 if part.side_by_side else part.images):  # in order, because each product adds to dweight
                of_dy = Matrix(maps.address(gradient, i * dy_stride), dy_ld, stride=m * dy_ld)
                of_x = Matrix(maps.address(columns, i * stride), ld, transposed=True, stride=k * ld)
                gemm(maps.dtype, (m, k, inner), of_dy, of_x, of_weight, beta=1, batch=maps.group)


def add_bias(dtype: np.dtype[Any], shape: tuple[int, ...], axis: int, bias: int, y: int) -> None:
    """Compute y[..., c, ...] += bias[c], c on y's axis `axis`. y has this shape."""
    planes, after = math.prod(shape[: axis + 1]), math.prod(shape[axis + 1 :])
    launch_planes("scale.scale", dtype, planes, after, shape[axis], y, 0, bias, y, 0)


def add_bias_gradient(dtype: np.dtype[Any], shape: tuple[int, ...], axis: int, dy: int, dbias: int) -> None:
    """Compute dbias[c] += the sum of dy[..., c, ...]."""
    numbers, lanes, after = math.prod(shape) // shape[axis], shape[axis], math.prod(shape[axis + 1 :])
    launch_sums("scale.scale_sums", dtype, lanes, numbers, numbers, lanes, after, dy, 0, 0, 0, dbias, 1)


def im2col(maps: Maps, x: int, columns: int) -> None:
    """Write every window of x as a column: columns (count, channels * taps, windows)."""
    _whole(maps).make_columns(x, columns, maps.windows, maps.rows * maps.windows)


def col2im(maps: Maps, columns: int, x: int) -> None:
    """Add columns (count, channels * taps, windows) to their pixels of x, which is overwritten: im2col's transpose."""
    _whole(maps).add_columns(columns, x, maps.windows, maps.rows * maps.windows)


def _by_cudnn(kind: cudnn.Kind, maps: Maps, first: int, second: int, result: int) -> bool:
    """Run the convolution with cuDNN if possible. Return whether it did."""
    if maps.by_cudnn is None or _better_as_product(kind, maps, tf32_allowed()):
        return False
    return cudnn.run(kind, maps.by_cudnn, first, second, result)


def _better_as_product(kind: cudnn.Kind, maps: Maps, tf32: bool) -> bool:
    """Return whether im2col and a product are faster than cuDNN's engine, or more exact.

    The times are measured on an H200. Without TF32, cuDNN's gradients of weights have errors of 1e-5 (docs/performance.md).
    """
    channels = maps.channels // maps.group
    if tf32 or channels < FEW:
        return kind != "forward" and channels < FEW
    if kind == "forward":
        return maps.outputs // maps.group >= MANY
    return kind == "weight" or channels >= MANY or max(maps.window.stride) > 1


@dataclass(frozen=True)
class _Part:
    """The images and windows of one launch. For several images, they are all windows."""

    maps: Maps
    first_image: int
    images: int
    first: int
    windows: int
    workspace: int
    side_by_side: bool

    def columns(self, x: int) -> tuple[int, int, int]:
        """Return this part's columns: their address, and the distances between rows and between images.

        The columns are in the workspace, or x itself.
        """
        address, ld, stride = self.place(x)
        if address == self.workspace:
            self.make_columns(x, address, ld, stride)
        return address, ld, stride

    def place(self, x: int) -> tuple[int, int, int]:
        """Return where the columns belong, in the form that `columns` returns."""
        if self.maps.window.pointwise and not self.side_by_side:
            return self.of_x(x), self.maps.pixels, self.maps.channels * self.maps.pixels
        return self.workspace, self.images * self.windows, self.windows

    def make_columns(self, x: int, columns: int, ld: int, stride: int) -> None:
        """Write x's windows as columns to this address."""
        maps = self.maps
        count = maps.channels * self.images * self.windows
        sizes = (maps.channels, self.images, self.first, self.windows, ld, stride)
        launch("im2col.im2col", maps.dtype, count, count, self.of_x(x), columns, *sizes, *maps.geometry)

    def add_columns(self, columns: int, dx: int, ld: int, stride: int) -> None:
        """Add the columns to their windows in dx. The first windows overwrite it."""
        maps = self.maps
        count = self.images * maps.channels * maps.pixels
        sizes = (int(self.first > 0), maps.channels, self.first, self.windows, ld, stride)
        launch("im2col.col2im", maps.dtype, count, count, columns, self.of_x(dx), *sizes, *maps.geometry)

    def gradient(self, dy: int) -> tuple[int, int, int]:
        """Return this part's gradients: their address, and the distances between rows and images.

        With side_by_side they are after the columns.
        """
        maps = self.maps
        if not self.side_by_side:
            return self.of_y(dy), maps.windows, maps.outputs * maps.windows
        address = maps.address(self.workspace, maps.rows * self.images * self.windows)
        count, ld = maps.outputs * self.images * self.windows, self.images * self.windows
        sizes = (maps.outputs, self.images, 0, self.windows, ld, self.windows)
        launch("im2col.im2col", maps.dtype, count, count, self.of_y(dy), address, *sizes, *_pixels(self.windows))
        return address, ld, self.windows

    def of_x(self, x: int) -> int:
        """Return the address of the first image."""
        return self.maps.address(x, self.first_image * self.maps.channels * self.maps.pixels)

    def of_y(self, y: int) -> int:
        """Return the address of the first window of the first image."""
        return self.maps.address(y, self.first_image * self.maps.outputs * self.maps.windows + self.first)


def _whole(maps: Maps) -> _Part:
    return _Part(maps, 0, maps.count, 0, maps.windows, 0, False)


def _parts(maps: Maps, side_by_side: bool = False) -> Iterator[_Part]:
    """Yield parts whose columns fit the workspace.

    side_by_side: columns of y's maps too, if there are several images.
    """
    side_by_side = side_by_side and maps.count > 1
    rows = maps.rows + (maps.outputs if side_by_side else 0)
    if maps.window.pointwise and not side_by_side:
        if maps.count:
            yield _whole(maps)
        return
    fitting = max(1, WORKSPACE // (rows * maps.dtype.itemsize))  # columns that fit
    images = max(1, min(fitting // max(maps.windows, 1), maps.count))
    windows = min(fitting, maps.windows) if images == 1 else maps.windows
    workspace = current().current_stream.workspace(rows * images * windows * maps.dtype.itemsize) if maps.count else 0
    for image in range(0, maps.count, images):
        count = min(images, maps.count - image)
        for first in range(0, maps.windows, windows):
            some = min(windows, maps.windows - first)  # the last part may be smaller
            yield _Part(maps, image, count, first, some, workspace, side_by_side and count > 1)


def _multiply(part: _Part, weight: int, transposed: bool, b: Matrix, c: Matrix) -> None:
    """Compute c = weight b, or weight^T b, for each group of each image. The matrices' strides are between images."""
    maps = part.maps
    m, k = maps.block
    sizes = (k, part.windows, m) if transposed else (m, part.windows, k)
    of_group = (weight, m * k), (b.address, sizes[2] * b.ld), (c.address, sizes[0] * c.ld)
    if maps.group == 1 or maps.group < part.images:  # a batch of images, for one group after another
        for i in range(maps.group):
            a_at, b_at, c_at = (maps.address(start, i * step) for start, step in of_group)
            images = Matrix(b_at, b.ld, stride=b.stride), Matrix(c_at, c.ld, stride=c.stride)
            gemm(maps.dtype, sizes, Matrix(a_at, k, transposed), *images, batch=part.images)
        return
    a = Matrix(weight, k, transposed, stride=m * k)
    for i in range(part.images):  # a batch of groups, for one image after another
        b_at, c_at = maps.address(b.address, i * b.stride), maps.address(c.address, i * c.stride)
        groups = Matrix(b_at, b.ld, stride=sizes[2] * b.ld), Matrix(c_at, c.ld, stride=sizes[0] * c.ld)
        gemm(maps.dtype, sizes, a, *groups, batch=maps.group)


def _pixels(count: int) -> tuple[int, ...]:
    """Return Maps.geometry for 1x1 windows on maps of `count` pixels in a row: im2col then only puts images side by side."""
    return (1, 1, count) * 2 + (1,) * 6 + (0,) * 3 + (1,) * 3
