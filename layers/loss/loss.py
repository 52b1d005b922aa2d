"""The base classes of losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from minicaffe.blob import Array, Blob
from minicaffe.layer import Count, Layer, data_bytes

from .loss_bottoms import ClassAxis, check_label_count


class Loss(Layer):
    """A loss without weights. top: loss ()."""

    num_bottom: ClassVar[Count] = 2
    num_top: ClassVar[Count] = 1
    is_loss = True
    auto_top = True
    weight_names: tuple[str, ...] | None = ()

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(())


class ImageLoss(Loss):
    """A loss of scores against one whole label an image; every value after the first axis is a class.

    bottom: scores (N, ...); labels (N,). Raises LayerError for another number of labels.
    """

    index_bottoms = (1,)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        shape = bottom[0].shape
        self.split = ClassAxis(math.prod(shape[:1]), math.prod(shape[1:]), 1)
        check_label_count(self, self.split, bottom)


class DifferenceLoss(Loss):
    """A loss of the difference of bottoms 0 and 1, which forward keeps for backward."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.difference = Blob((), self.dtype)

    def kept_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
        return data_bytes([self.difference])


def put_opposite(dx: Array, propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
    """Write dx to bottom 0's diff and -dx to bottom 1's, where propagate_down says so."""
    if propagate_down[0]:
        bottom[0].diff[...] = dx
    if propagate_down[1]:
        bottom[1].diff[...] = -dx.reshape(bottom[1].shape)


def device_diffs(bottom: Sequence[Blob], propagate_down: Sequence[bool]) -> list[int]:
    """The addresses of the bottoms' diffs, to be overwritten; 0 where propagate_down says no."""
    return [blob.device_diff("write") if wanted else 0 for blob, wanted in zip(bottom, propagate_down)]
