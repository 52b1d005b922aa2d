"""ShuffleChannel: the channels of groups, interleaved: y[n, j g + i, ...] = x[n, i C/g + j, ...].

Source: Zhang et al., ShuffleNet (arXiv:1707.01083); farmingyard's shuffle_channel_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Array, Blob

from .rearranged import Rearranged


class ShuffleChannel(Rearranged):
    """The channels as a table of `group` rows, read column by column: the first of each group, the second of each, ...

    bottom: x (N, C, ...). top: y (the same shape). shuffle_channel_param.group defaults to 1, which changes nothing.
    Raises LayerError when x has fewer than two axes, group is 0, or C is no multiple of it.
    """

    type = "ShuffleChannel"
    param_block = ("shuffle_channel_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        self.group = self.param.shuffle_channel_param.group
        if not self.group:
            raise self.error("group must be > 0, got 0", "shuffle_channel_param.group")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) < 2:
            raise self.error(f"x must have at least two axes, got shape {shape}", "bottom[0]")
        if shape[1] % self.group:
            wrong = f"{shape[1]} channels cannot be cut into {self.group} groups of one size"
            raise self.error(wrong, "shuffle_channel_param.group")
        top[0].reshape(shape)

    def arranged(self, x: Array) -> Array:
        n, channels, *rest = x.shape
        view: Array = x.reshape(n, self.group, channels // self.group, *rest).swapaxes(1, 2)
        return view
