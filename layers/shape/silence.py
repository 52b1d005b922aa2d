"""Silence: reads blobs that no other layer reads, so that they are no outputs. Source: Caffe's silence_layer.hpp."""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Blob
from minicaffe.layer import Layer


class Silence(Layer):
    """Does nothing with its bottoms; their diffs become 0.

    bottom[i]: any shapes. No top. Raises no LayerError.
    """

    type = "Silence"
    num_bottom = (1, None)
    num_top = 0
    weight_names = ()
    copies = (0, 0)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Nothing."""

    forward_gpu = forward_cpu

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        for blob, wanted in zip(bottom, propagate_down, strict=True):
            if wanted:
                blob.zero_diff()

    backward_gpu = backward_cpu
