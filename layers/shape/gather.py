"""Gather and Scatter."""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Blob
from minicaffe.layer import AsManyAsBottoms, Layer


class Gather(Layer):
    """Each top is the bottom of its place, in the bottom's memory (data and diff).

    What temporal segment networks' Caffe joins from all its MPI ranks; in one process, the bottoms themselves.

        y_i = x_i        dx_i = dy_i

    The fork joins the batches of all ranks before the layers after it, and in backward multiplies each rank's part of the diff
    by the number of ranks. Here each rank keeps its own batch: the mean of the ranks' gradients, which training on MPI takes,
    is the same wherever the loss is a mean over the batch. Source: PSPNet's gather_layer.cpp (Wang et al., 2016), the same
    fork's.

    bottom[i]: any shapes. top[i]: x[i]. Raises LayerError when there are not as many tops as bottoms.
    """

    type = "Gather"
    num_bottom = (1, None)
    num_top = AsManyAsBottoms()
    weight_names = ()
    copies = (0, 0)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for x, y in zip(bottom, top, strict=True):
            y.reshape(x.shape)
            y.share_data(x)  # at each reshape: the bottom may have got new memory
            y.share_diff(x)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Nothing: the tops are the bottoms' memory."""

    forward_gpu = forward_cpu


class Scatter(Gather):
    """Each top is the bottom of its place, in the bottom's memory (data and diff).

    What temporal segment networks' Caffe deals out to all its MPI ranks; in one process, the bottoms themselves.

    It undoes Gather, and is as it is here. Source: PSPNet's scatter_layer.cpp (Wang et al., 2016), the same fork's.

    bottom[i]: any shapes. top[i]: x[i]. Raises LayerError when there are not as many tops as bottoms.
    """

    type = "Scatter"
