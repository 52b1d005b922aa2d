"""FlowAugmentation: the flow between two images that were augmented, from the flow between the images.

    y[i, j] = map2^-1(p + flow[at p, rounded]) - (j, i),  p = map1(j, i)

Source: FlowNet 2's flow_augmentation_layer.cu (Ilg et al., 2017).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer

from .coefficients import check_coefficients, inverse, pixel_map, read


class FlowAugmentation(Layer):
    """The flow of crops of crop_height x crop_width whose images were augmented by these coefficients.

    bottom: flow (N, 2, H, W), right and down in pixels; the coefficients (N, 42, 1, 1) of the first and of the second image.
    top: the flow (N, 2, h, w). A place beyond the image takes the flow at its edge, where the original reads other memory. No
    gradient.
    Raises LayerError for other shapes, and without a crop.
    """

    type = "FlowAugmentation"
    num_bottom = 3
    num_top = 1
    param_block = ("augmentation_param",)
    weight_names = ()
    has_gradient = False
    index_bottoms = (0, 1, 2)
    copies = (2, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.crop = (self.param.augmentation_param.crop_height, self.param.augmentation_param.crop_width)
        if not all(self.crop):
            raise self.error("needs crop_height and crop_width", "augmentation_param")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        flow = bottom[0].shape
        if len(flow) != 4 or flow[1] != 2 or not all(flow[2:]):
            raise self.error(f"the flow must be (N, 2, H, W), got shape {flow}", "bottom[0]")
        for i in (1, 2):
            check_coefficients(self, bottom[i].shape, flow[0], f"bottom[{i}]")
        top[0].reshape(flow[0], 2, *self.crop)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for flow, first, second, y in zip(*(blob.data for blob in bottom), top[0].data, strict=True):
            maps = [pixel_map(read(row.reshape(-1)), self.crop, flow.shape[1:]) for row in (first, second)]
            moved(flow, maps[0], inverse(maps[1]), y)


def moved(flow: Array, first: Array, second: Array, y: Array) -> None:
    """y (2, h, w) of a flow (2, H, W): first maps a crop's places to the image's (2, 3), second those of the second image
    to its crop's."""
    size = np.array(flow.shape[:0:-1])
    crop = np.mgrid[: y.shape[1], : y.shape[2]][::-1].astype(np.float32)
    places = _mapped(first, crop)
    # fmax and fmin take NaN for the other
    near = np.fmax(0, np.fmin(np.trunc(places + np.float32(0.5)), (size - 1).reshape(2, 1, 1))).astype(np.intp)
    y[...] = _mapped(second, places + flow[:, near[1], near[0]].astype(np.float32)) - crop


def _mapped(whole: Array, places: Array) -> Array:
    """Places (2, h, w), x and y, mapped (2, 3)."""
    mapped: Array = np.einsum("ab,bij->aij", whole[:, :2], places) + whole[:, 2].reshape(2, 1, 1)
    return mapped
