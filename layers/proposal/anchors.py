"""Anchors: the reference boxes of the RPN's deltas.

    area 16 x 16 at (0, 0, 15, 15) -> every ratio (height / width, sides rounded) -> every scale, about one centre;
    then shifted by the stride over the feature map, in the order row, column, anchor.

Source: Faster R-CNN (arXiv:1506.01497), section 3.1; py-faster-rcnn's rpn/generate_anchors.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob

from .param_str import StandIn, layer_parameters, whole_parameter

MOST = 10_000
"""Most anchors at one position; Faster R-CNN has 9."""


def generate_anchors(
    base_size: int = 16, ratios: Sequence[float] = (0.5, 1, 2), scales: Sequence[float] = (8, 16, 32)
) -> NDArray[np.float64]:
    """Return anchors (len(ratios) * len(scales), 4), ratios outermost. Halves round to even, as in the originals."""
    ratio = np.asarray(ratios, np.float64)
    width = np.round(np.sqrt(base_size * base_size / ratio))
    height = np.round(width * ratio)  # as in the original, from the rounded width
    sides = np.stack([width, height], axis=1)[:, None, :] * np.asarray(scales, np.float64)[None, :, None]
    half = 0.5 * (sides.reshape(-1, 2) - 1)  # - 1, because both corners are inclusive
    centre = 0.5 * (base_size - 1)
    return np.concatenate([centre - half, centre + half], axis=1)


def shifted_anchors(anchors: Array, height: int, width: int, stride: int) -> Array:
    """Return all anchors (height * width * A, 4) of a map: anchors (A, 4) at every (row, column), anchors fastest."""
    x, y = np.meshgrid(np.arange(width) * stride, np.arange(height) * stride)
    shifts = np.stack([x, y, x, y], axis=2).reshape(-1, 1, 4)
    return (shifts + anchors[None]).reshape(-1, 4)


def by_position(x: Array, size: int) -> Array:
    """Return x (1, A * size, H, W) as (H * W * A, size), in the order of shifted_anchors."""
    positions: Array = x[0].transpose(1, 2, 0).reshape(-1, size)
    return positions


def by_channel(values: Array, height: int, width: int) -> Array:
    """Return values (H * W * A, size) or (H * W * A,) as (A * size, H, W)."""
    per_position = values.size // max(height * width, 1)
    channels: Array = values.reshape(height, width, per_position).transpose(2, 0, 1)
    return channels


def layer_anchors(layer: StandIn, scores: Blob) -> tuple[Array, int]:
    """Return the anchors (A, 4) and the stride that a layer's param_str gives, or the settings for keys that it lacks.

    Its keys are feat_stride, and optionally base_size, scales and ratios. Warns if the model's own generate_anchors.py makes
    other anchors. scores: (1, 2 A, H, W).
    """
    written = layer_parameters(layer)
    values = layer.anchor_values(written, scores.shape[1] if len(scores.shape) == 4 else 0)
    stride = whole_parameter(layer, values, "feat_stride")
    lists = {}
    for key, default in (("scales", (8, 16, 32)), ("ratios", (0.5, 1, 2))):
        numbers = values.get(key, default)
        if not isinstance(numbers, list | tuple) or not numbers or not all(_positive(n) for n in numbers):
            raise layer.error(f"param_str: {key} must be a list of numbers > 0, got {numbers!r}", "python_param.param_str")
        lists[key] = numbers
    count = len(lists["scales"]) * len(lists["ratios"])
    if count > MOST:
        given = " and ".join(f"{len(numbers)} {key}" for key, numbers in lists.items())
        message = f"param_str: {given} are {count:,} anchors; at most {MOST:,} are made at each position"
        raise layer.error(message, "python_param.param_str")
    base_size = whole_parameter(layer, {"base_size": 16, **values}, "base_size")
    anchors = generate_anchors(base_size, **lists)
    if values is written:
        layer.warn_of_other_anchors(anchors)
    return anchors, stride


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < np.inf
