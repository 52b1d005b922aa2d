"""SPP: spatial pyramid pooling of a map of any size to a vector of one size.

Source: Caffe's spp_layer.cpp; He et al. 2014.

level l has 2^l x 2^l bins: kernel = stride = ceil(size / 2^l), pad = floor((kernel 2^l - size + 1) / 2) on each axis
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.layer import Unary
from minicaffe.proto import caffe_pb2

from .pooling import Pooling


class SPP(Unary):
    """The bins of pyramid_height levels of pooling, one level after the other.

    bottom: x (N, C, H, W). top: y (N, C * (1 + 4 + 16 + ...)), each level's bins in the order channel, row, column; with
    one level (N, C, 1, 1). spp_param.pool: MAX, AVE or STOCHASTIC, as Pooling has them; STOCHASTIC needs a map that every
    level's bins divide.
    Raises LayerError when pyramid_height is 0, or the map is too small for that many bins.
    """

    type = "SPP"
    param_block = ("spp_param",)
    copies = (0, 1)
    levels: list[tuple[Pooling, Blob]]
    """Each level's pooling and its result (N, C, bins, bins)."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.height = self.param.spp_param.pyramid_height
        if self.height < 1:
            raise self.error(f"pyramid_height must be > 0, got {self.height}", "spp_param.pyramid_height")
        self._spatial: tuple[int, ...] = ()
        self._x = Blob((), self.dtype)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) != 4:
            raise self.error(f"the bottom must have 4 axes (N, C, H, W), its shape is {shape}", "bottom[0]")
        if shape[2:] != self._spatial:  # kernels and pads depend on the map's size
            self.levels = [(self._pooling(bottom[0], level), Blob((), self.dtype)) for level in range(self.height)]
            self._spatial = shape[2:]
        self._x.reshape(shape)  # shares x's data; each level may overwrite its diff
        for pooling, y in self.levels:
            pooling.reshape(bottom, [y])
        bins = sum(4**level for level in range(self.height))
        # With one level, Caffe skips Flatten and Concat.
        top[0].reshape(*((*shape[:2], 1, 1) if self.height == 1 else (shape[0], shape[1] * bins)))

    def _pooling(self, bottom: Blob, level: int) -> Pooling:
        """Return the Pooling layer of one level for a map of this size."""
        spatial, bins = bottom.shape[2:], 2**level
        kernel = [-(-size // bins) for size in spatial]
        pad = [(k * bins - size + 1) // 2 for k, size in zip(kernel, spatial)]
        if min(spatial) < 1 or any(p >= k for p, k in zip(pad, kernel)):
            raise self.error(
                f"pyramid_height {self.height} divides the map into up to {_most_bins(self.height)} bins;"
                f" a map of {spatial[0]}x{spatial[1]} is too small for {bins}x{bins}",
                "spp_param.pyramid_height",
            )
        inner = caffe_pb2.LayerParameter(name=self.name, type="SPP")
        pool = inner.pooling_param
        pool.pool = self.param.spp_param.pool  # type: ignore[assignment]  # the two enums have the same numbers
        pool.kernel_h, pool.kernel_w = pool.stride_h, pool.stride_w = kernel
        pool.pad_h, pool.pad_w = pad
        pooling = Pooling(inner, phase=self.phase, dtype=self.dtype, source=self.source)
        pooling.setup([bottom], [bottom])  # setup reads only the number of tops
        return pooling

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        images = bottom[0].shape[0]
        for pooling, y in self.levels:
            pooling.forward_on_host(bottom, [y])
        # max: an empty batch has no numbers for an image.
        parts = [y.data.reshape(images, y.count // max(1, images)) for _, y in self.levels]
        np.concatenate(parts, axis=1, out=top[0].data.reshape(images, top[0].count // max(1, images)))

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        images = bottom[0].shape[0]
        dy = top[0].diff.reshape(images, top[0].count // max(1, images))
        self._x.share_data(bottom[0])
        dx, start = bottom[0].diff, 0
        dx[...] = 0
        for pooling, y in self.levels:
            end = start + y.count // max(1, images)
            y.diff[...] = dy[:, start:end].reshape(y.shape)
            pooling.backward_cpu([y], [True], [self._x])
            dx += self._x.diff
            start = end


def _most_bins(height: int) -> str:
    """Return the last level's bins as text: `4x4` for 3 levels, 2^99x2^99 for 100."""
    side = str(2 ** (height - 1)) if height < 32 else f"2^{height - 1}"
    return f"{side}x{side}"
