"""What the layers compute, as functions of NumPy arrays: arrays in, arrays out, no net needed."""

from __future__ import annotations

from .layers.anchors import generate_anchors, shifted_anchors
from .layers.boxes import bbox_overlaps, bbox_transform, bbox_transform_inv, clip_boxes
from .layers.nms import nms
from .layers.proposal import ProposalLimits, proposals
from .layers.psroi_align import ps_roi_align, ps_roi_align_backward
from .layers.psroi_pooling import ps_roi_pool, ps_roi_pool_backward
from .layers.roi_align_max import roi_align_max, roi_align_max_argmax, roi_align_max_backward
from .layers.roi_align_mean import roi_align, roi_align_backward
from .layers.roi_pooling import roi_pool, roi_pool_argmax, roi_pool_backward

__all__ = [
    "ProposalLimits",
    "bbox_overlaps",
    "bbox_transform",
    "bbox_transform_inv",
    "clip_boxes",
    "generate_anchors",
    "nms",
    "proposals",
    "ps_roi_align",
    "ps_roi_align_backward",
    "ps_roi_pool",
    "ps_roi_pool_backward",
    "roi_align",
    "roi_align_backward",
    "roi_align_max",
    "roi_align_max_argmax",
    "roi_align_max_backward",
    "roi_pool",
    "roi_pool_argmax",
    "roi_pool_backward",
    "shifted_anchors",
]
