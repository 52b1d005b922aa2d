"""Layers that give a blob another shape.

PixelShuffle, which brocolli's Caffe has as a type and Synopsys' as a Reshape, moves the channels into a finer map:

    y[n, c, h r + i, w r + j] = x[n, (c r + i) r + j, h, w]        r = upscale_factor, or pixelshuffler

Source: Shi et al., ESPCN (arXiv:1609.05158); inisis/caffe's pixelshuffle_layer.cpp; synopsys-caffe's reshape_layer.cpp.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence

from minicaffe.blob import MAX_AXES, Array, Blob, too_many_axes
from minicaffe.formats.forks import NetFork
from minicaffe.layer import Layer, Unary
from minicaffe.layers.shape.rearranged import Rearranged
from minicaffe.proto import caffe_pb2
from minicaffe.reads import Axis


class Reshape(Unary):
    """The bottom with num_axes axes from `axis` on (default: all) replaced by shape.dim: 0 copies an axis, -1 is inferred.

    Nothing is copied. With Synopsys' pixelshuffler it is another layer, ShufflingReshape. Source: Caffe's reshape_layer.hpp.

    axis may be negative, -1 being the place after the last axis; num_axes -1 means all that follow, 0 inserts axes.
    bottom: x (any shape). top: y, x's memory (data and diff) in the new shape.
    Raises LayerError when axis or num_axes lead past x's axes, a dim is below -1, two are -1, a 0 has no axis to copy, the
    -1 cannot be inferred, or the counts differ.
    """

    type = "Reshape"
    param_block = ("reshape_param",)
    only_shares = True
    copies = (0, 0)

    @classmethod
    def resolve_class(cls, param: caffe_pb2.LayerParameter, fork: NetFork) -> builtins.type[Layer]:
        return ShufflingReshape if param.reshape_param.pixelshuffler != 1 else cls

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        dims = list(self.param.reshape_param.shape.dim)
        if len(dims) > MAX_AXES:
            raise self.error(too_many_axes(dims), "reshape_param.shape")
        if any(d < -1 for d in dims):
            raise self.error(f"dims must be >= -1, got {dims}", "reshape_param.shape")
        if dims.count(-1) > 1:
            raise self.error(f"only one dim can be -1, got {dims}", "reshape_param.shape")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(self.new_shape(bottom[0].shape))
        top[0].share(bottom[0])  # in each reshape, because the bottom may have new memory

    def replaced_axes(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the half-open range of the bottom's axes that shape.dim replaces."""
        param, axes = self.param.reshape_param, len(shape)
        # -1 means after the last axis, to insert axes there.
        start = param.axis if param.axis >= 0 else axes + param.axis + 1
        if not 0 <= start <= axes:
            raise self.error(f"axis {param.axis} is out of range for shape {shape}", "reshape_param.axis")
        end = axes if param.num_axes == -1 else start + param.num_axes
        if not start <= end <= axes:
            raise self.error(
                f"num_axes {param.num_axes} from axis {start} on does not fit shape {shape}", "reshape_param.num_axes"
            )
        return start, end

    def new_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the top's shape for a bottom's."""
        start, end = self.replaced_axes(shape)
        dims = list(self.param.reshape_param.shape.dim)
        for i, dim in enumerate(dims):
            if dim == 0:
                if start + i >= len(shape):
                    raise self.error(f"dim {i} is 0, but shape {shape} has no axis {start + i} to copy", "reshape_param.shape")
                dims[i] = shape[start + i]
        new = [*shape[:start], *dims, *shape[end:]]
        if -1 in new:
            inferred = infer_axis(shape, new)
            if inferred is None:
                raise self.error(f"the -1 of {new} cannot be inferred from shape {shape}", "reshape_param.shape")
            new[new.index(-1)] = inferred
        if math.prod(new) != math.prod(shape):
            raise self.error(
                f"shape {tuple(new)} has {math.prod(new)} elements, the bottom's {shape} has {math.prod(shape)}",
                "reshape_param.shape",
            )
        return tuple(new)

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        (images, *_, rows, columns), (new_images, *_, new_rows, new_columns) = bottom[b].shape, top[t].shape
        if columns != new_columns or images != new_images or not rows or not new_rows:
            return None
        if new_rows % rows == 0:  # maps above each other, as in the scores of a region proposal network
            return Axis(modulo=rows), Axis()
        return (Axis(last=rows - new_rows, step=new_rows), Axis()) if rows % new_rows == 0 else None

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Do nothing: the top shares the bottom's memory."""

    forward_gpu = forward_cpu


def infer_axis(shape: tuple[int, ...], new: Sequence[int]) -> int | None:
    """Return the length of the -1 in new, a reshaping of shape, or None if nothing fits.

    Axes of length 0 that stay (0 rois) are left out of both counts, so that (0, 21, 7) as [0, -1] still is (0, 147).
    """
    known = [d for d in new if d != -1]
    count = math.prod(d for d in shape if d or 0 not in known)
    explicit = math.prod(d for d in known if d)
    return count // explicit if count % explicit == 0 else None


class Flatten(Unary):
    """The axes from `axis` (default 1) to `end_axis` (default -1, the last), both included, merged into one.

    Nothing is copied. Source: Caffe's flatten_layer.hpp.

    bottom: x (N, C, H, W). top: y (N, C * H * W) by default, x's memory (data and diff).
    Raises LayerError when an axis is out of range, or end_axis is before axis.
    """

    type = "Flatten"
    param_block = ("flatten_param",)
    only_shares = True
    copies = (0, 0)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, shape = self.param.flatten_param, bottom[0].shape
        start = self.axis_of(param.axis, bottom[0], "flatten_param.axis")
        end = self.axis_of(param.end_axis, bottom[0], "flatten_param.end_axis") + 1
        if end <= start:
            raise self.error(f"end_axis {param.end_axis} is before axis {param.axis} in shape {shape}", "flatten_param")
        top[0].reshape(*shape[:start], math.prod(shape[start:end]), *shape[end:])
        top[0].share(bottom[0])  # in each reshape, because the bottom may have new memory

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Do nothing: the top shares the bottom's memory."""

    forward_gpu = forward_cpu


class PixelShuffle(Rearranged):
    """Each r x r channels as one map r times as high and wide. r is upscale_factor.

    bottom: x (N, C, H, W). top: y (N, C / r^2, H r, W r). Raises LayerError when x has not four axes, r is missing or below 1,
    or its square does not divide C.
    """

    type = "PixelShuffle"
    param_block = ("pixelshuffle_param",)
    field = "pixelshuffle_param.upscale_factor"
    """r's field."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        block, self.name_of_factor = self.field.split(".")
        self.factor: int = getattr(getattr(self.param, block), self.name_of_factor)
        if self.factor < 1:
            raise self.error(f"{self.name_of_factor} must be > 0, got {self.factor}", self.field)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, r = bottom[0].shape, self.factor
        if len(shape) != 4:
            raise self.error(f"with {self.name_of_factor} x must be (N, C, H, W), got shape {shape}", "bottom[0]")
        n, c, h, w = shape
        if c % (r * r):
            raise self.error(f"{self.name_of_factor} {r} needs a multiple of {r * r} channels, got {c}", self.field)
        top[0].reshape(n, c // (r * r), h * r, w * r)

    def arranged(self, x: Array) -> Array:
        (n, c, h, w), r = x.shape, self.factor
        view: Array = x.reshape(n, c // (r * r), r, r, h, w).transpose(0, 1, 4, 2, 5, 3)
        return view


class ShufflingReshape(PixelShuffle):
    """PixelShuffle as Synopsys' Caffe writes it. r is pixelshuffler; reshape_param's other fields have no effect.

    bottom: x (N, C, H, W). top: y (N, C / r^2, H r, W r).
    """

    type = "Reshape"
    param_block = ("reshape_param",)
    field = "reshape_param.pixelshuffler"
