"""FlowWarp: an image sampled where a flow points, bilinearly.

    y[c, i, j] = x[c, i + v[i, j], j + u[i, j]], between the four pixels around; fill_value outside of the image

The flow's channel 0 is u, to the right, and channel 1 is v, down, in pixels. Past the last row or column its pixels count
twice. Source: FlowNet 2's flow_warp_layer.cpp (Ilg et al., 2017).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2


class FlowWarp(Layer):
    """y = x at the places that the flow points to; dx adds each dy to its four pixels, dflow is the slope between them times
    dy.

    bottom: x (N, C, H, W), flow (N, 2, H, W) in pixels. top: y (N, C, H, W).
    flow_warp_param: fill_value (ZERO or NOT_A_NUMBER) of places outside of x, which have no gradient.
    Raises LayerError for other shapes.
    """

    type = "FlowWarp"
    num_bottom = 2
    num_top = 1
    param_block = ("flow_warp_param",)
    weight_names = ()

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, flow = bottom[0].shape, bottom[1].shape
        if len(x) != 4:
            raise self.error(f"x must be (N, C, H, W), got shape {x}", "bottom[0]")
        if flow != (x[0], 2, *x[2:]):
            raise self.error(
                f"the flow must be {(x[0], 2, *x[2:])}: right and down for each pixel, got shape {flow}", "bottom[1]"
            )
        top[0].reshape(x)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        fill = np.nan if self.param.flow_warp_param.fill_value == caffe_pb2.FlowWarpParameter.NOT_A_NUMBER else 0
        for x, flow, y in zip(bottom[0].data, bottom[1].data, top[0].data):
            place = Places(flow)
            values = sum(x.reshape(len(x), -1)[:, at] * share for at, share in place.corners())
            y.reshape(len(x), -1)[:] = np.where(place.inside, values, self.dtype.type(fill))

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        for n in range(bottom[0].shape[0]):
            x, dy = (array[n].reshape(len(array[n]), -1) for array in (bottom[0].data, top[0].diff))
            place = Places(bottom[1].data[n])
            if propagate_down[0]:
                dx = bottom[0].diff[n].reshape(len(x), -1)
                dx[...] = 0
                for at, share in place.corners():
                    kept = at[place.inside]
                    for channel, given in zip(dx, dy * share):
                        np.add(
                            channel,
                            np.bincount(kept, given[place.inside], minlength=len(channel)).astype(self.dtype),
                            out=channel,
                        )
            if propagate_down[1]:
                dflow = bottom[1].diff[n].reshape(2, -1)
                for axis, slopes in enumerate((place.to_the_right, place.down)):
                    slope = sum(x[:, at] * share for at, share in slopes())
                    dflow[axis] = np.where(place.inside, np.einsum("cp,cp->p", dy, slope), 0)


Corner = tuple[NDArray[np.intp], Array]
"""Of each pixel of y (H * W,) a pixel of x, and its share."""


class Places:
    """The places that a flow (2, H, W) points to: `inside` (H * W,), and the four pixels around each."""

    def __init__(self, flow: Array) -> None:
        height, width = self.size = flow.shape[1:]
        at_x, at_y = (flow + np.mgrid[:height, :width][::-1].astype(flow.dtype)).reshape(2, -1)
        self.inside = (at_x >= 0) & (at_y >= 0) & (at_x < width) & (at_y < height)  # NaN is outside
        at_x, at_y = (np.where(self.inside, at, 0) for at in (at_x, at_y))
        self.left, self.above = at_x.astype(np.intp), at_y.astype(np.intp)
        self.right, self.below = np.minimum(self.left + 1, width - 1), np.minimum(self.above + 1, height - 1)
        self.x, self.y = at_x - self.left, at_y - self.above

    def corners(self) -> list[Corner]:
        """The pixels and their shares, of y."""
        return self._pixels((1 - self.x) * (1 - self.y), self.x * (1 - self.y), (1 - self.x) * self.y, self.x * self.y)

    def to_the_right(self) -> list[Corner]:
        """The pixels and their shares, of y's slope to the right."""
        return self._pixels(self.y - 1, 1 - self.y, -self.y, self.y)

    def down(self) -> list[Corner]:
        """The pixels and their shares, of y's slope downwards."""
        return self._pixels(self.x - 1, -self.x, 1 - self.x, self.x)

    def _pixels(self, *shares: Array) -> list[Corner]:
        """Those at the top left, top right, bottom left and bottom right, with these shares."""
        width = self.size[1]
        return list(
            zip([row * width + column for row in (self.above, self.below) for column in (self.left, self.right)], shares)
        )
