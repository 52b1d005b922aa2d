"""Images sampled at the positions that a flow points to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.kernels import kernel
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2
from minicaffe.threads import parts, run

BLOCK = 8192
"""Places that NumPy processes at once, so that their numbers stay in cache."""
Pixels = NDArray[np.uint32]
"""The pixels around each place, (4, W), numbered from 0 row by row: top left, top right, bottom left, bottom right."""


def find_pixels(flow: Array, i: int, around: Pixels, part: Array) -> None:
    """Find the pixels that row i comes from.

    part (2, W): the distance to the right and down from the pixel at the top left, -1 outside of the image.
    """
    height, width = flow.shape[1:]
    for j in range(width):
        part[0, j], part[1, j] = j + flow[0, i, j], i + flow[1, i, j]
        if 0 <= part[0, j] < width and 0 <= part[1, j] < height:
            left, above = int(part[0, j]), int(part[1, j])
            right, below = min(left + 1, width - 1), min(above + 1, height - 1)
            around[0, j], around[1, j] = above * width + left, above * width + right
            around[2, j], around[3, j] = below * width + left, below * width + right
            part[0, j] -= left
            part[1, j] -= above
        else:
            around[:, j] = 0
            part[:, j] = -1


def warp_by_definition(x: Array, flow: Array, rows: tuple[int, int], fill: float, y: Array) -> None:
    """Compute a range of rows of y (C, H, W) from x (C, H * W)."""
    channels, _, width = y.shape
    around, part = np.empty((4, width), np.uint32), np.empty((2, width), x.dtype)
    for i in range(rows[0], rows[1]):
        find_pixels(flow, i, around, part)
        for c in range(channels):
            for j in range(width):
                upper = x[c, around[0, j]] + (x[c, around[1, j]] - x[c, around[0, j]]) * part[0, j]
                lower = x[c, around[2, j]] + (x[c, around[3, j]] - x[c, around[2, j]]) * part[0, j]
                y[c, i, j] = fill if part[0, j] < 0 else upper + (lower - upper) * part[1, j]


def warp_backward_by_definition(dy: Array, flow: Array, channels: tuple[int, int], dx: Array) -> None:
    """Add the gradient to a range of channels of dx (C, H * W)."""
    height, width = dy.shape[1:]
    around, part = np.empty((4, width), np.uint32), np.empty((2, width), dx.dtype)
    for i in range(height):
        find_pixels(flow, i, around, part)
        for c in range(channels[0], channels[1]):
            for j in range(width):
                if part[0, j] >= 0:
                    lower = dy[c, i, j] * part[1, j]
                    upper = dy[c, i, j] - lower
                    dx[c, around[0, j]] += upper * (1 - part[0, j])
                    dx[c, around[1, j]] += upper * part[0, j]
                    dx[c, around[2, j]] += lower * (1 - part[0, j])
                    dx[c, around[3, j]] += lower * part[0, j]


def flow_backward_by_definition(both: tuple[Array, Array], flow: Array, rows: tuple[int, int], dflow: Array) -> None:
    """Compute a range of rows of dflow (2, H, W) from x (C, H * W) and dy.

    It is the slopes between the four pixels, times dy.
    """
    x, dy = both
    channels, _, width = dy.shape
    around, part = np.empty((4, width), np.uint32), np.empty((2, width), x.dtype)
    for i in range(rows[0], rows[1]):
        find_pixels(flow, i, around, part)
        dflow[:, i] = 0
        for c in range(channels):
            for j in range(width):
                upper, lower = x[c, around[1, j]] - x[c, around[0, j]], x[c, around[3, j]] - x[c, around[2, j]]
                left, right = x[c, around[2, j]] - x[c, around[0, j]], x[c, around[3, j]] - x[c, around[1, j]]
                dflow[0, i, j] += (upper + (lower - upper) * part[1, j]) * dy[c, i, j]
                dflow[1, i, j] += (left + (right - left) * part[0, j]) * dy[c, i, j]
        for j in range(width):
            if part[0, j] < 0:
                dflow[0, i, j] = dflow[1, i, j] = 0


Corners = tuple[NDArray[np.intp], Array]
"""The four pixels around each place, and their shares, (4, H * W) each."""


class Places:
    """The positions that a flow (2, H, W) points to, one for each pixel of y, (H * W,) each.

    inside: whether it is in the image; left, above: its column and row; x, y: the fractions to the right and down from there.
    """

    def __init__(self, flow: Array) -> None:
        self.height, self.width = flow.shape[1:]
        at_x = (flow[0] + np.arange(self.width, dtype=flow.dtype)).ravel()
        at_y = (flow[1] + np.arange(self.height, dtype=flow.dtype)[:, None]).ravel()
        self.inside = (at_x >= 0) & (at_y >= 0) & (at_x < self.width) & (at_y < self.height)  # False for NaN
        at_x, at_y = (np.where(self.inside, at, 0) for at in (at_x, at_y))
        self.left, self.above = at_x.astype(np.intp), at_y.astype(np.intp)
        self.x, self.y = at_x - np.floor(at_x), at_y - np.floor(at_y)

    def corners(self) -> Corners:
        """Return each position's four pixels (4, H * W) and their shares, which are 0 outside of the image."""
        right, below = np.minimum(self.left + 1, self.width - 1), np.minimum(self.above + 1, self.height - 1)
        pixels = np.stack([row * self.width + column for row in (self.above, below) for column in (self.left, right)])
        lower, upper = np.where(self.inside, self.y, 0), np.where(self.inside, 1 - self.y, 0)
        return pixels, np.stack([part * beside for part in (upper, lower) for beside in (1 - self.x, self.x)])

    def around(self, pixels: Array, part: slice = slice(None)) -> Array:
        """Return the four of a channel's _pixels around each of some positions, (4, P)."""
        found: Array = pixels.take(self.above[part] * self.width + self.left[part], axis=0).T
        return found


def _pixels(x: Array) -> Array:
    """Return each pixel of a channel (H, W) with its neighbours right, below, and below right: (H * W, 4).

    Side by side, four numbers are read in the time of one.
    """
    pixels = np.empty((*x.shape, 4), x.dtype)
    for k, rows in ((0, x), (2, np.concatenate([x[1:], x[-1:]]))):
        pixels[..., k] = rows
        pixels[:, :-1, k + 1], pixels[:, -1:, k + 1] = rows[:, 1:], rows[:, -1:]
    return pixels.reshape(-1, 4)


def _warp(x: Array, place: Places, fill: Array, y: Array) -> None:
    """Compute a channel y (H, W) from x."""
    top_left, top_right, low_left, low_right = place.around(_pixels(x))
    upper, lower = top_left + (top_right - top_left) * place.x, low_left + (low_right - low_left) * place.x
    y[...] = np.where(place.inside, upper + (lower - upper) * place.y, fill).reshape(y.shape)


def _warp_back(dy: Array, corners: Corners, inside: NDArray[np.bool_], channels: tuple[int, int], dx: Array) -> None:
    """Compute a range of channels of dx (C, H * W), with sums in float64."""
    pixels, shares = corners
    given = np.empty(shares.shape)
    for c in range(*channels):
        np.multiply(shares, np.where(inside, dy[c], 0), out=given)
        dx[c] = np.bincount(pixels.ravel(), given.ravel(), minlength=len(inside))


def _slopes(both: tuple[Array, Array], place: Places, span: tuple[int, int], dflow: Array) -> None:
    """Compute a range of positions of dflow (2, H * W) from x (C, H, W) and dy (C, H * W)."""
    blocks = [slice(start, min(start + BLOCK, span[1])) for start in range(*span, BLOCK)]
    dflow[:, span[0] : span[1]] = 0
    for plane, dy in zip(*both):
        pixels = _pixels(plane)
        for part in blocks:
            top_left, top_right, low_left, low_right = place.around(pixels, part)
            upper, left, more = top_right - top_left, low_left - top_left, low_right - low_left
            more -= upper
            dflow[0, part] += (upper + more * place.y[part]) * dy[part]
            dflow[1, part] += (left + more * place.x[part]) * dy[part]
    for part in blocks:
        dflow[:, part] = np.where(place.inside[part], dflow[:, part], 0)


@kernel
def warp(x: Array, flow: Array, fill: Any, y: Array) -> None:
    """Sample x (C, H, W) where flow (2, H, W) points, into y (C, H, W). fill: outside of x."""
    place = Places(flow)
    run(partial(_warp, plane, place, fill, to) for plane, to in zip(x, y))


@kernel
def warp_backward(x: Array, flow: Array, dy: Array, dx: Array | None, dflow: Array | None) -> None:
    """Write the gradients of x and of the flow. One that is None is skipped."""
    place = Places(flow)
    given = dy.reshape(len(dy), flow[0].size)
    if dx is not None:
        corners, to = place.corners(), dx.reshape(given.shape)
        run(partial(_warp_back, given, corners, place.inside, channels, to) for channels in spans(len(x)))
    if dflow is not None:
        slopes = dflow.reshape(2, -1)
        run(partial(_slopes, (x, given), place, span, slopes) for span in spans(slopes.shape[1]))


def spans(count: int) -> list[tuple[int, int]]:
    """Return each thread's (first, stop) of `count` rows or channels."""
    return [(part.start, part.stop) for part in parts(count)]


class FlowWarp(Layer):
    """y = x at the positions that the flow points to. dx adds each dy to its four pixels; dflow is their slope times dy.

        y[c, i, j] = x[c, i + v[i, j], j + u[i, j]], between the four pixels around; fill_value outside of the image

    The flow's channel 0 is u, to the right, and channel 1 is v, down, in pixels. Past the last row or column its pixels count
    twice.

    Source: FlowNet 2's flow_warp_layer.cpp (Ilg et al., 2017).

    bottom: x (N, C, H, W), flow (N, 2, H, W) in pixels. top: y (N, C, H, W).
    flow_warp_param: fill_value (ZERO or NOT_A_NUMBER) of places outside of x, which have no gradient.
    Raises LayerError for other shapes.
    """

    type = "FlowWarp"
    num_bottom = 2
    num_top = 1
    param_block = ("flow_warp_param",)
    weight_names = ()
    uses_kernels = ((warp,), (warp_backward,))

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, flow = bottom[0].shape, bottom[1].shape
        if len(x) != 4:
            raise self.error(f"x must be (N, C, H, W), got shape {x}", "bottom[0]")
        if flow != (x[0], 2, *x[2:]):
            raise self.error(
                f"the flow must be {(x[0], 2, *x[2:])}: right and down for each pixel, got shape {flow}", "bottom[1]"
            )
        top[0].reshape(x)

    def flows(self, flow: Blob) -> Array:
        """Return the flows (N, 2, H, W) as the formula uses them."""
        return flow.data

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        fill = np.nan if self.param.flow_warp_param.fill_value == caffe_pb2.FlowWarpParameter.NOT_A_NUMBER else 0
        for x, flow, y in zip(bottom[0].data, self.flows(bottom[1]), top[0].data):
            warp(x, flow, self.dtype.type(fill), y)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        for n, (x, flow, dy) in enumerate(zip(bottom[0].data, self.flows(bottom[1]), top[0].diff)):
            dx, dflow = (blob.diff[n] if wanted else None for blob, wanted in zip(bottom, propagate_down))
            warp_backward(x, flow, dy, dx, dflow)


class Warp(FlowWarp):
    """FlowWarp with 0 wherever a flow points past the centre of the last row or column; dx and dflow are 0 there.

    Source: PWC-Net's warp_layer.cu.

    bottom: x (N, C, H, W), flow (N, 2, H, W), right and down in pixels. top: y (N, C, H, W). The gradient of a flow that points
    to a pixel is the slope to the next one; the original takes the mean of both.
    Raises LayerError for other shapes.
    """

    type = "Warp"

    def flows(self, flow: Blob) -> Array:
        height, width = flow.shape[2:]
        at_x, at_y = flow.data[:, 0] + np.arange(width), flow.data[:, 1] + np.arange(height)[:, None]
        outside = (at_x > width - 1) | (at_y > height - 1)
        return np.where(outside[:, None], flow.data.dtype.type(np.nan), flow.data)
