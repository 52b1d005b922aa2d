"""Reshape: the same numbers in another shape, with no copy. Source: Caffe's reshape_layer.hpp.

With Synopsys' pixelshuffler it is another layer, pixel_shuffle.py.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence

from minicaffe.blob import MAX_AXES, Blob, too_many_axes
from minicaffe.formats.fork_kinds import NetFork
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

from .pixel_shuffle import PixelShuffle


class Reshape(Layer):
    """Replace the num_axes axes from `axis` on (default: all) by shape.dim: 0 copies the bottom's axis, -1 is inferred.

    axis may be negative, -1 being the place after the last axis; num_axes -1 means all that follow, 0 inserts axes.
    bottom: x (any shape). top: y, x's memory (data and diff) in the new shape.
    Raises LayerError when axis or num_axes lead past x's axes, a dim is below -1, two are -1, a 0 has no axis to copy, the
    -1 cannot be inferred, or the counts differ.
    """

    type = "Reshape"
    num_bottom = 1
    num_top = 1
    param_block = ("reshape_param",)
    weight_names = ()
    only_shares = True
    copies = (0, 0)

    @classmethod
    def serving(cls, param: caffe_pb2.LayerParameter, fork: NetFork) -> builtins.type[Layer]:
        return PixelShuffle if param.reshape_param.pixelshuffler != 1 else cls

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
        top[0].share(bottom[0])  # at each reshape: the bottom may have got new memory

    def replaced_axes(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """The half-open range of the bottom's axes that shape.dim replaces."""
        param, axes = self.param.reshape_param, len(shape)
        # -1 is past the last axis, not the last: to insert one there
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
        """What the layer makes of a shape."""
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

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Nothing: the top is the bottom's memory."""

    forward_gpu = forward_cpu


def infer_axis(shape: tuple[int, ...], new: Sequence[int]) -> int | None:
    """What -1 stands for in new, a reshaping of shape; None where nothing fits.

    Axes of length 0 that stay (0 rois) are left out of both counts, so that (0, 21, 7) as [0, -1] still is (0, 147).
    """
    known = [d for d in new if d != -1]
    count = math.prod(d for d in shape if d or 0 not in known)
    explicit = math.prod(d for d in known if d)
    return count // explicit if count % explicit == 0 else None
