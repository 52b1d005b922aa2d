"""Parameter: a learnable blob as a top: y = weight. Source: Caffe's parameter_layer.hpp; happynear's."""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Blob
from minicaffe.layer import Costs, Layer


class Parameter(Layer):
    """y = weight.

    No bottom. top: y, of the shape that parameter_param gives (none: a scalar). blobs: weight, of y's shape, filled by
    blob_filler (happynear's; default: 0).
    Raises LayerError when a given weight has another shape.
    """

    type = "Parameter"
    num_bottom = 0
    num_top = 1
    param_block = ("parameter_param",)
    weight_names = ("parameter",)
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.parameter_param
        shape = tuple(param.shape.dim)
        self.learn([shape], [param.blob_filler])
        top[0].reshape(shape)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=0)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[...] = self.blobs[0].data

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if self.param_propagate_down[0]:
            self.blobs[0].diff[...] += top[0].diff
