"""Add and Sum, of Synopsys' Caffe: TensorFlow's add and reduce_sum.

Source: foss-for-synopsys-dwc-arc-processors/synopsys-caffe's add_layer.cpp and sum_layer.cpp. They have no backward; here it is
the gradient of forward. Its Sum adds to what the top held before; minicaffe's does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.layer import Layer, Unary


class Add(Layer):
    """y = a + b. Shapes are aligned at their last axes; an axis of 1, or a missing one, is repeated.

    bottom: a, b (any shapes whose aligned axes are equal, or 1 in one of them). top: y. db is the sum of dy over the axes along
    which b is repeated; so for a.
    Raises LayerError for shapes that do not fit.
    """

    type = "Add"
    num_bottom = 2
    num_top = 1
    weight_names = ()
    copies = (0, 1)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shapes = [blob.shape for blob in bottom]
        try:
            shape = np.broadcast_shapes(*shapes)
        except ValueError as error:
            wanted = f"from their last axes on, shapes {shapes[0]} and {shapes[1]} must have equal axes, or 1 in one of them"
            raise self.error(wanted, "bottom[1]") from error
        top[0].reshape(shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        np.add(bottom[0].data, bottom[1].data, out=top[0].data)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dy = top[0].diff
        for blob, wanted in zip(bottom, propagate_down, strict=True):
            if wanted:
                missing = dy.ndim - len(blob.shape)
                repeated = [i for i, size in enumerate((1,) * missing + blob.shape) if size == 1]
                blob.diff[...] = dy.sum(axis=tuple(repeated)).reshape(blob.shape)


class Sum(Unary):
    """y = the sum of x over the axes sum_param.axis (default: all). keepdims leaves each as an axis of 1.

    bottom: x. top: y. A negative axis counts from the end.
    Raises LayerError for an axis out of range or given twice.
    """

    type = "Sum"
    param_block = ("sum_param",)
    copies = (0, 0)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, shape = self.param.sum_param, bottom[0].shape
        axes = [self.axis_of(axis, bottom[0], "sum_param.axis") for axis in param.axis] or [*range(len(shape))]
        if len({*axes}) != len(axes):
            raise self.error(f"an axis is given twice: {[*param.axis]}", "sum_param.axis")
        self.axes = tuple(axes)
        self.kept = tuple(1 if i in axes else size for i, size in enumerate(shape))
        top[0].reshape(self.kept if param.keepdims else [size for i, size in enumerate(shape) if i not in axes])

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[...] = bottom[0].data.sum(axis=self.axes).reshape(top[0].shape)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            bottom[0].diff[...] = top[0].diff.reshape(self.kept)
