"""Input: blobs that the caller fills. Source: Caffe's input_layer.hpp."""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Blob
from minicaffe.layer import Layer


class Input(Layer):
    """Tops of the shapes that input_param gives; their data is the caller's.

    No bottom. top[i]: input_param.shape[i], or the one shape for every top.
    Raises LayerError when the number of shapes is neither 0, 1 nor the number of tops.
    """

    type = "Input"
    num_bottom = 0
    num_top = (1, None)
    param_block = ("input_param",)
    weight_names = ()
    has_gradient = False
    is_input = True
    only_shares = True
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shapes = self.param.input_param.shape
        if len(shapes) not in (0, 1, len(top)):
            raise self.error(f"{len(shapes)} shapes given for {len(top)} tops: give none, one, or one for each", "input_param")
        for i, blob in enumerate(top):
            if shapes:
                blob.reshape(shapes[min(i, len(shapes) - 1)].dim)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Nothing: the data is already there."""

    forward_gpu = forward_cpu
