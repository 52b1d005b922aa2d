"""Transformer: happynear's spatial transformer, whose output is as large as its map, and 0 where a place is outside of it.

    place = theta (y, x, 1), as SpatialTransformer's; outside: beyond the first or the last pixel

The original lays its grid out with the height in the place of the width. A map that is wider than high is thus sampled at other
places, here too; for a map that is higher than wide it writes past its memory, and minicaffe refuses it.
Source: happynear's transformer_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer

from .spatial_transformer import Sampled, grid


class Transformer(Layer):
    """y = x sampled at theta's image of the grid, 0 outside; gradients as SpatialTransformer's.

    bottom: x (N, C, H, W), theta (N, 6). top: y (N, C, H, W).
    Raises LayerError for other shapes, and for H > W.
    """

    type = "Transformer"
    num_bottom = 2
    num_top = 1
    weight_names = ()

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, theta = bottom[0].shape, bottom[1].shape
        if len(x) != 4 or theta[:2] != (x[0], 6) or bottom[1].count != 6 * x[0]:
            raise self.error(f"x (N, C, H, W) and theta (N, 6) are needed, got shapes {x} and {theta}", "bottom")
        if x[2] > x[3]:
            raise self.error(
                f"x must not be higher than wide, got {x[2]} x {x[3]}: the original writes past its grid", "bottom[0]"
            )
        top[0].reshape(x)

    def _grid(self, x: Blob) -> Array:
        """The original's: pixel (i, j) is at i * height + j, and what is behind the last one is (0, 0, 0)."""
        height, width = x.shape[2:]
        whole = grid(x.shape[2:], self.dtype).reshape(3, height, width)
        laid = np.zeros((3, height * width), self.dtype)
        for i in range(height):
            laid[:, i * height : i * height + width] = whole[:, i]
        return laid

    def _sampled(self, bottom: Sequence[Blob], n: int, places: Array) -> Sampled:
        """Image n at theta's image of the grid's places."""
        moved = bottom[1].data[n].reshape(2, 3) @ places
        return Sampled(bottom[0].shape[2:], moved, inside_only=True, on_pixels=0)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        places = self._grid(bottom[0])
        for n, (x, y) in enumerate(zip(bottom[0].data, top[0].data)):
            self._sampled(bottom, n, places).of(x, y)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        places = self._grid(bottom[0])
        for n, dy in enumerate(top[0].diff):
            sampled = self._sampled(bottom, n, places)
            if propagate_down[0]:
                sampled.backward(dy, bottom[0].diff[n])
            if propagate_down[1]:
                bottom[1].diff[n].reshape(2, 3)[:] = np.asarray(sampled.slope(bottom[0].data[n], dy) @ places.T)
