"""Layers whose tops are sized in forward: the number of rois or boxes depends on the values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from minicaffe.blob import Blob
from minicaffe.layer import Layer


class DynamicTops(Layer):
    """A layer that finds the length of an axis of its tops in forward. List it before other bases.

    dynamic_axis: that axis; None if reshape knows all shapes. dynamic_rois: whether the tops are rois (setup may set it).
    """

    dynamic_axis: ClassVar[int | None] = 0
    dynamic_rois: bool = False

    def assume_rois(self, bottom: Sequence[Blob], top: Sequence[Blob], rois: int | None) -> None:
        """Shape the tops for one image's rois, if the layer makes rois.

        rois: the assumed number that a proposal layer returns.
        """


def dynamic_rois(layer: Layer) -> bool:
    """Return whether the number of rois in the layer's tops is only known after forward."""
    return isinstance(layer, DynamicTops) and layer.dynamic_rois
