"""Split and Silence: blobs with several readers, and with none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.cuda.device import current
from minicaffe.layer import Layer
from minicaffe.threads import Index, each_block


class Split(Layer):
    """Every top is the bottom. Backward sums all the tops' diffs, also unwritten ones (zeros).

    y_i = x, dx = sum of dy_i. Source: Caffe's split_layer.hpp.

    bottom: x (any shape). top[i]: x, in the bottom's memory (no copy); diffs are separate.
    The net inserts this layer wherever a blob has more than one reader. Raises no LayerError.
    """

    type = "Split"
    num_bottom = 1
    num_top = (1, None)
    weight_names = ()
    elementwise = True
    only_shares = True
    copies = (0, 0)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for blob in top:
            blob.reshape(bottom[0].shape)
            blob.share_data(bottom[0])  # only data, because each reader writes its own diff

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Do nothing: the tops share the bottom's memory."""

    forward_gpu = forward_cpu

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        first, *others = [blob.diff.reshape(-1) for blob in top]
        dx = bottom[0].diff.reshape(-1)

        def step(index: Index) -> None:
            part, *rest = dx[index], *(dy[index] for dy in others)
            if rest:
                np.add(first[index], rest[0], out=part)
            else:
                part[...] = first[index]
            for dy in rest[1:]:
                part += dy

        each_block(dx.shape, step)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        diffs, dx = [blob.device_diff("read") for blob in top], bottom[0].device_diff("write")
        if len(diffs) == 1:
            current().copy(dx, diffs[0], bottom[0].count * self.dtype.itemsize)
        total, *rest = diffs
        while rest:
            three = (*rest[:3], 0, 0)[:3]  # up to three in one launch, for fewer passes over dx
            self.launch("split.sum", bottom[0].count, bottom[0].count, total, *three, dx)
            total, rest = dx, rest[3:]


class Silence(Layer):
    """A reader that does nothing with its bottoms. Their diffs become 0.

    Reads blobs that no other layer reads, so that they are no outputs. Source: Caffe's silence_layer.hpp.

    bottom[i]: any shapes. No top. Raises no LayerError.
    """

    type = "Silence"
    num_bottom = (1, None)
    num_top = 0
    weight_names = ()
    copies = (0, 0)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Do nothing."""

    forward_gpu = forward_cpu

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        for blob, wanted in zip(bottom, propagate_down, strict=True):
            if wanted:
                blob.zero_diff()

    backward_gpu = backward_cpu
