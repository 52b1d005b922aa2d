"""Random ROI layers, on rois inside, across and outside the map, and malformed ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from net_builder import Builder
from numpy.typing import NDArray


def rois(b: Builder, x: str, ties: bool = True) -> tuple[str, str]:
    """An input of rois for map x, and the spatial_scale. ties: also rois that are whole numbers, as some are on an edge."""
    images, _, height, width = b.shape(x)
    scale = b.one([1.0, 0.5, 0.25, 0.3])
    count = b.whole(1, 5)
    first = b.random.uniform(-0.3, 1.1, (count, 2)) * [width, height]
    size = b.random.uniform(0, 0.8, (count, 2)) * [width, height]
    malformed = b.random.random((count, 1)) < 0.15
    corners = np.hstack([first, np.where(malformed, first - size, first + size)]) / scale
    if ties and b.chance(0.15):
        corners = np.round(corners)
    indices: NDArray[Any] = b.random.integers(0, images, (count, 1))
    values = np.hstack([indices, corners])
    return b.input(values.reshape(count, 5, 1, 1) if b.chance(0.2) else values, "rois"), f"spatial_scale: {scale}"


def bins(b: Builder) -> str:
    height, width = b.distinct((1, 4), (1, 4))
    return f"pooled_h: {height} pooled_w: {width}"


def roi_pooling(b: Builder) -> None:
    x = b.pick(4)
    boxes, scale = rois(b, x)
    b.add("ROIPooling", [x, boxes], f"roi_pooling_param {{ {bins(b)} {scale} }}")


def roi_align(b: Builder) -> None:
    x = b.pick(4)
    caffe = b.chance(0.5)
    boxes, scale = rois(b, x, ties=not caffe)  # a place that float32 alone rounds to a whole one counts twice in Caffe's
    if caffe:
        scales = [b.input(np.array([0.4]), "scale")] if b.chance(0.3) else []
        b.add("ROIAlign", [x, boxes, *scales], f"roi_align_param {{ {bins(b)} {scale} }}")
    else:
        words = f"pool: AVE sampling_ratio: {b.whole(0, 3)} aligned: {b.one(['true', 'false'])}"
        b.add("ROIAlign", [x, boxes], f"roi_align_param {{ {bins(b)} {scale} {words} }}")


def position_sensitive(b: Builder) -> None:
    group = b.whole(1, 3)
    wanted = b.whole(1, 3)
    x = b.pick(4)
    x = b.add("Convolution", [x], f"convolution_param {{ num_output: {wanted * group**2} kernel_size: 1 }}")[0]
    boxes, scale = rois(b, x)
    words = f"{scale} output_dim: {wanted} group_size: {group}"
    if b.chance(0.5):
        b.add("PSROIPooling", [x, boxes], f"psroi_pooling_param {{ {words} }}")
    else:
        b.add("PSROIAlign", [x, boxes], f"psroi_align_param {{ {words} sample_num: {b.whole(1, 3)} }}")


ROIS = [roi_pooling, roi_pooling, roi_align, roi_align, position_sensitive, position_sensitive]
