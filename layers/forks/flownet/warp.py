"""Warp: an image sampled where a flow points, bilinearly; 0 past its last row and column. Source: PWC-Net's warp_layer.cu."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array, Blob

from .flow_warp import FlowWarp


class Warp(FlowWarp):
    """FlowWarp with 0 wherever a flow points past the centre of the last row or column; dx and dflow are 0 there.

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
