"""Anchors and limits from proposal_param, which forks' Proposal layers in C++ read and make different anchors from.

    ratio r, scale s, base size b:    PVANET's       w = s round(b / sqrt(r)),  h = s round(round(b / sqrt(r)) r)
                                      happynear's    w = round(s / sqrt(r)),    h = round(s sqrt(r))

Source: proposal_layer.cpp of Intel's training_toolbox_caffe (PVANET's, as is mini-caffe's) and of happynear's caffe-windows.
"""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.formats.fork_kinds import Kind
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

from .anchors import MOST

PVANET, HAPPYNEAR = "PVANET", "happynear"
KINDS = (
    Kind(PVANET, ("pvanet",), "proposal_param's scale counts in base_size"),
    Kind(HAPPYNEAR, ("happynear",), "proposal_param's scale counts in pixels"),
)
BLOCK = "proposal_param"


def param_anchors(param: caffe_pb2.ProposalParameter, whose: str) -> Array:
    """Anchors (A, 4) around the base box's centre, the ratios outermost."""
    ratio, scale = (np.array(numbers, np.float32) for numbers in (param.ratio, param.scale))
    base = np.float32(param.base_size)
    width = np.sqrt(base * base / ratio)
    if whose == PVANET:
        width = _rounded(width)
    height = _rounded(width * ratio) if whose == PVANET else width * ratio
    sides = np.stack([width, height], axis=1)[:, None] * scale[:, None]
    half = 0.5 * (sides - 1 if whose == PVANET else _rounded(sides / np.float64(base) - 1)).reshape(-1, 2)
    centre = 0.5 * (param.base_size - 1)
    return np.concatenate([centre - half, centre + half], axis=1)


def _rounded(x: Array) -> Array:
    """As the originals' cast to int of x + 0.5 does."""
    whole: Array = np.trunc(x + 0.5)
    return whole


def check_param(layer: Layer) -> None:
    """Raises LayerError for numbers that make no anchors."""
    param = layer.param.proposal_param
    for name in ("feat_stride", "base_size"):
        if getattr(param, name) < 1:
            raise layer.error(f"{name} must be > 0, got {getattr(param, name)}", f"{BLOCK}.{name}")
    for name in ("ratio", "scale"):
        numbers = list(getattr(param, name))
        if not numbers or not all(0 < number < np.inf for number in numbers):
            raise layer.error(f"{name} must list numbers > 0, got {numbers}", f"{BLOCK}.{name}")
    if len(param.ratio) * len(param.scale) > MOST:
        given = f"{len(param.ratio)} ratios and {len(param.scale)} scales"
        raise layer.error(f"{given} are too many anchors; at most {MOST:,} are made at each position", BLOCK)
    if not param.post_nms_topn:
        raise layer.error("post_nms_topn must be > 0, got 0", f"{BLOCK}.post_nms_topn")
