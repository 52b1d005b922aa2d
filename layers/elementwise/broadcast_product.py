"""x times a factor that has one number for several of x's, for layers that say which."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.blocks import Index, each_block
from minicaffe.layer import Layer


class BroadcastProduct(Layer):
    """bottom: x, s. top: y = x * s (x's shape), s in the shape that factor_shape gives, repeated along its axes of 1."""

    num_bottom = 2
    num_top = 1
    weight_names = ()
    copies = (0, 1)
    factor: tuple[int, ...]
    """s's shape, with an axis of 1 for each of x's that it is repeated along."""

    @abstractmethod
    def factor_shape(self, x: tuple[int, ...], s: tuple[int, ...]) -> tuple[int, ...]:
        """factor, for the bottoms' shapes. Raises LayerError where they do not go together."""

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.factor = self.factor_shape(bottom[0].shape, bottom[1].shape)
        top[0].reshape(bottom[0].shape)

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
    """y = x * factor, block by block; factor has x's axes, some of length 1."""
    whole = np.broadcast_to(factor, x.shape)

    def step(index: Index) -> None:
        np.multiply(x[index], whole[index], out=y[index])

    each_block(x.shape, step)
