"""Accum: maps resized bilinearly to one size, corners on corners, and joined along the channels.

The size is that of the largest bottom, or a larger one that is given. Source: FlowNet 2's accum_layer.cpp (Ilg et al., 2017).
"""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Blob
from minicaffe.layer import Layer
from minicaffe.layers.shape.interp import Taps, neighbours, sample, scatter


class Accum(Layer):
    """y[:, the channels of bottom k] = bottom k, resized to (H, W).

    bottom: x_0 (N, C_0, H_0, W_0), ..., and with have_reference at last a blob of the wanted size. top: y (N, sum of C_k, H,
    W): accum_param's top_height and top_width, or the largest sizes rounded up to multiples of size_divisible_by, where both
    are larger than every bottom's; else the largest of the bottoms'.
    Raises LayerError for bottoms without four axes and a pixel, for other numbers of images, and for a reference without a map.
    """

    type = "Accum"
    num_bottom = (1, None)
    num_top = 1
    param_block = ("accum_param",)
    weight_names = ()
    copies = (0, 1)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.accum_param
        self.maps = len(bottom) - param.have_reference
        self.axes: list[list[Taps]] = []
        if not self.maps:
            raise self.error("have_reference needs a map and, at last, the reference", "bottom")
        if param.HasField("size_divisible_by") and not param.size_divisible_by:
            raise self.error("size_divisible_by must be at least 1", "accum_param.size_divisible_by")
        if param.have_reference:
            self.index_bottoms = (self.maps,)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for i, blob in enumerate(bottom):
            if len(blob.shape) != 4 or 0 in blob.shape[2:]:
                raise self.error(f"the maps must be (N, C, H, W) with pixels, got shape {blob.shape}", f"bottom[{i}]")
            if blob.shape[0] != bottom[0].shape[0] and i < self.maps:
                raise self.error(f"all bottoms need {bottom[0].shape[0]} images, got shape {blob.shape}", f"bottom[{i}]")
        maps = bottom[: self.maps]
        size = self._size(bottom)
        top[0].reshape(bottom[0].shape[0], sum(blob.shape[1] for blob in maps), *size)
        axes = [[Taps(one, out) for one, out in zip(blob.shape[2:], size)] for blob in maps]
        if axes != self.axes:  # of the same sizes, what they have computed stays
            self.axes = axes

    def _size(self, bottom: Sequence[Blob]) -> tuple[int, ...]:
        param = self.param.accum_param
        if param.have_reference:
            return bottom[-1].shape[2:]
        largest = tuple(max(sizes) for sizes in zip(*(blob.shape[2:] for blob in bottom)))
        wanted = param.top_height, param.top_width
        if step := param.size_divisible_by:
            wanted = -(-largest[0] // step) * step, -(-largest[1] // step) * step
        return wanted if all(a > b for a, b in zip(wanted, largest)) else largest

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        first = 0
        for blob, axes in zip(bottom, self.axes):
            last = first + blob.shape[1]
            for x, y in zip(blob.data, top[0].data[:, first:last]):
                sample(neighbours(axes[0], axes[1], self.dtype), x, y)
            first = last

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        first = 0
        for blob, axes, wanted in zip(bottom, self.axes, propagate_down):
            last = first + blob.shape[1]
            for dy, dx in zip(top[0].diff[:, first:last], blob.diff) if wanted else ():
                scatter(neighbours(axes[0], axes[1], self.dtype), dy, dx)
            first = last
