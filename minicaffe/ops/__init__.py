"""The layers' computations as functions of NumPy arrays: arrays in, arrays out, no net needed.

Each checks its arguments: an Error names the one at fault. Lists are taken for arrays. The ROI functions are in rois.py,
SSD's in ssd.py.
"""

from __future__ import annotations

from minicaffe.data import boxes
from minicaffe.layers.proposal import anchors, proposal
from minicaffe.layers.proposal import nms as suppression
from minicaffe.layers.proposal.proposal import ProposalLimits
from minicaffe.layers.ssd import box_codes, prior_box

from . import checks, rois
from . import ssd as ops_ssd
from .checks import ARRAY, COUNT, INTEGER, LENGTH, NUMBER, SHAPE, checked

__all__ = [
    "ProposalLimits",
    "aspect_ratios",
    "bbox_overlaps",
    "bbox_transform",
    "bbox_transform_inv",
    "clip_boxes",
    "generate_anchors",
    "jaccard",
    "nms",
    "prior_boxes",
    "prior_sides",
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
    "roi_warp",
    "roi_warp_backward",
    "shifted_anchors",
    "ssd_decode",
    "ssd_detections",
    "ssd_encode",
    "ssd_match",
    "ssd_nms",
]


# Boxes and the RPN.

nms = checked(suppression.nms, dets="N 5", threshold=NUMBER, limit=INTEGER)
bbox_overlaps = checked(boxes.bbox_overlaps, boxes="N 4+", others="K 4+")
bbox_transform = checked(boxes.bbox_transform, checks.bad_sides, boxes="N 4", targets="N 4")
bbox_transform_inv = checked(boxes.bbox_transform_inv, boxes="N 4", deltas="N 4K")
clip_boxes = checked(boxes.clip_boxes, checks.not_positive("image_shape"), boxes="N 4K", image_shape="2+")
generate_anchors = checked(anchors.generate_anchors, checks.bad_anchors, base_size=COUNT, ratios="N", scales="K")
shifted_anchors = checked(anchors.shifted_anchors, anchors="A 4", height=LENGTH, width=LENGTH, stride=COUNT)
proposals = checked(proposal.proposals, checks.not_positive("im_info"), anchors="N 4", scores="N", deltas="N 4", im_info="3")

# ROI layers. A forward checks its map and rois itself.

_GRID = {"pooled_h": COUNT, "pooled_w": COUNT, "spatial_scale": NUMBER}
_BACKWARD = {"dy": "R C PH PW", "rois": "R 5", "x_shape": SHAPE}
_ARGMAX = {**_BACKWARD, "argmax": "int R C PH PW"}
_GROUPED = {"dy": "R D G G", "rois": "R 5", "x_shape": SHAPE, "spatial_scale": NUMBER}

roi_pool = checked(rois.roi_pool, **_GRID)
roi_pool_argmax = checked(rois.roi_pool_argmax, **_GRID)
roi_pool_backward = checked(rois.roi_pool_backward, checks.bad_pool_argmax, **_ARGMAX)
roi_align = checked(rois.roi_align, **_GRID, sampling_ratio=INTEGER)
roi_align_backward = checked(
    rois.roi_align_backward, checks.bad_rois, **_BACKWARD, spatial_scale=NUMBER, sampling_ratio=INTEGER
)
roi_align_max = checked(rois.roi_align_max, **_GRID)
roi_align_max_argmax = checked(rois.roi_align_max_argmax, **_GRID)
roi_align_max_backward = checked(rois.roi_align_max_backward, checks.bad_align_argmax, **_ARGMAX, spatial_scale=NUMBER)
roi_warp = checked(rois.roi_warp, **_GRID)
roi_warp_backward = checked(rois.roi_warp_backward, checks.bad_rois, **_BACKWARD, spatial_scale=NUMBER)
ps_roi_pool = checked(rois.ps_roi_pool, group_size=COUNT, spatial_scale=NUMBER)
ps_roi_pool_backward = checked(rois.ps_roi_pool_backward, checks.bad_group, **_GROUPED)
ps_roi_align = checked(rois.ps_roi_align, group_size=COUNT, spatial_scale=NUMBER, sample_num=COUNT)
ps_roi_align_backward = checked(rois.ps_roi_align_backward, checks.bad_group, **_GROUPED, sample_num=COUNT)

# SSD.

aspect_ratios = checked(prior_box.aspect_ratios, checks.not_positive("given"), given="N")
prior_sides = checked(prior_box.prior_sides, checks.bad_prior_sides, min_sizes="N", max_sizes="K", ratios="R")
prior_boxes = checked(
    prior_box.prior_boxes, checks.bad_prior_places, sides="K 2", size="int 2", image="2", step="2", offset=NUMBER
)
jaccard = checked(box_codes.jaccard, boxes="N 4", others="K 4")
ssd_decode = checked(ops_ssd.ssd_decode, checks.bad_codes, codes="P 4", priors="P 4")
ssd_encode = checked(ops_ssd.ssd_encode, checks.bad_codes, boxes="P 4", priors="P 4")
ssd_match = checked(ops_ssd.ssd_match, overlaps="P G")
ssd_nms = checked(ops_ssd.ssd_nms, checks.bad_eta, boxes="N 4", scores="N", threshold=NUMBER)
ssd_detections = checked(
    ops_ssd.ssd_detections, checks.bad_detections, boxes=ARRAY, scores="C P", background=INTEGER, nms_threshold=NUMBER
)
