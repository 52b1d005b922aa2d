"""The instances in an image, each with a mask, from the two stages of MNC's net by mask voting.

    rois, masks and scores of both stages, boxes in pixels of the image, clipped to it
          -> per class: score > threshold, NMS with 0.3, then the best 100 of all classes
          -> of each: the masks of all boxes that overlap it by at least 0.5, drawn into the image at their boxes, and added,
             weighted by their scores of its class -> its box: around the pixels > 0.4 of the sum
          -> the sum in its box at the masks' size -> at the box's size, and >= 0.4: its pixels

Source: Dai et al., MNC (arXiv:1512.04412); tools/demo.py, gpu_mask_voting of lib/transform/mask_transform.py,
lib/nms/mv_kernel.cu and lib/utils/vis_seg.py of daijifeng001/MNC.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.boxes import bbox_overlaps, clip_boxes, rows
from minicaffe.data.images import resize_bilinear
from minicaffe.data.settings import DetectionSettings
from minicaffe.errors import Error
from minicaffe.layers.forks.mnc import MNCMask
from minicaffe.net import Net

from .detect import Detections, Floats, pick
from .inputs import check_scores, image_scale

STAGES = (("rois", "mask_proposal", "seg_cls_prob"), ("rois_ext", "mask_proposal_ext", "seg_cls_prob_ext"))
"""The blobs with the boxes, masks and scores of each stage, as demo.py takes them."""
SCORES = STAGES[0][2]
MOST = 100
"""Instances of an image: demo.py's."""

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Instances:
    """The instances found in one image, best score first.

    detections: their boxes, whole pixels, both ends inclusive, scores and classes. masks: of each its pixels in its box (h, w).
    """

    detections: Detections
    masks: list[Bools]


def has_instances(net: Net) -> bool:
    """Return True for MNC's nets, whose MaskLayer makes the masks."""
    return any(isinstance(layer, MNCMask) for layer in net.layers)


def find_instances(net: Net, height: int, width: int, *, threshold: float = 0.5) -> Instances:
    """Run the net on the image in its inputs; height and width are the image's, before scaling. Return its instances.

    threshold: the score that an instance must exceed. Raises Error for a net without MNC's blobs, and for numbers that are NaN
    or infinite.
    """
    for name in (name for names in STAGES for name in names):
        if name not in net.blobs:
            raise Error(f'{net.file}: a net of MNC has a blob "{name}"; this net has none')
    net.forward(blobs=[name for names in STAGES for name in names])
    scale = image_scale(net, width)
    stages = [_stage(net, *names) for names in STAGES]
    boxes, masks, scores = (_joined(net, k, [stage[k] for stage in stages]) for k in range(3))
    return vote(
        clip_boxes(boxes / scale, (height, width)), masks, scores, height, width, settings=net.settings, threshold=threshold
    )


def _stage(net: Net, rois: str, masks: str, scores: str) -> tuple[Floats, Floats, Floats]:
    """Return the boxes (R, 4) in pixels of the input, masks (R, h, w) and scores (R, K) of a stage. Raises Error."""
    for name, what in ((rois, "boxes"), (masks, "masks"), (scores, "scores")):
        check_scores(net.blobs[name].data, name, what)
    boxes, shape = rows(net.blobs[rois]), net.blobs[masks].shape
    if boxes.shape[1] != 5:
        raise Error(f'{net.file}: "{rois}" must be (R, 5), got shape {net.blobs[rois].shape}')
    if len(shape) != 4 or shape[0] != len(boxes) or shape[1] != 1 or not shape[2] * shape[3]:
        raise Error(f'{net.file}: "{masks}" must be ({len(boxes)}, 1, height, width), as "{rois}"; got shape {shape}')
    if len(net.blobs[scores].data) != len(boxes):
        shape = net.blobs[scores].shape
        raise Error(f'{net.file}: "{scores}" must be ({len(boxes)}, classes), as "{rois}"; got shape {shape}')
    return boxes[:, 1:], net.blobs[masks].data[:, 0], rows(net.blobs[scores])


def _joined(net: Net, k: int, arrays: list[Floats]) -> Floats:
    """Return the k-th blobs' values of both stages. Raises Error if their shapes differ."""
    first, second = arrays
    if first.shape[1:] != second.shape[1:]:
        ours, theirs = STAGES[0][k], STAGES[1][k]
        raise Error(f'{net.file}: "{ours}" {net.blobs[ours].shape} and "{theirs}" {net.blobs[theirs].shape} must agree')
    return np.concatenate(arrays).astype(np.float32, copy=False)


def vote(
    boxes: Floats,
    masks: Floats,
    scores: Floats,
    height: int,
    width: int,
    *,
    settings: DetectionSettings | None = None,
    threshold: float = 0.5,
) -> Instances:
    """Return the instances of boxes (R, 4) in an image of this size.

    masks: (R, h, w), 0 to 1. scores: (R, K), the background first. settings: TEST.MASK_MERGE_NMS_THRESH,
    TEST.MASK_MERGE_IOU_THRESH and BINARIZE_THRESH.
    """
    settings = settings or DetectionSettings()
    in_mask = np.float32(settings.binarize_thresh)
    each = np.repeat(boxes[:, None], scores.shape[1], axis=1)
    kept = pick(scores, each, nms_threshold=settings.test.mask_merge_nms_thresh, threshold=threshold, max_detections=MOST)
    overlaps = bbox_overlaps(boxes, kept.boxes)
    found, pixels = np.empty((len(kept), 4), np.float32), list[Bools]()
    for i, k in enumerate(kept.classes):
        voters = np.flatnonzero(overlaps[:, i] >= settings.test.mask_merge_iou_thresh)
        weights = scores[voters, k] / np.float32(scores[voters, k].sum(dtype=np.float64))
        heat = _added(boxes[voters], masks[voters], weights, height, width)
        box = _around(heat > in_mask)
        found[i] = box
        pixels.append(_at_masks_size(heat, box, masks.shape[1:]) >= in_mask)
    return Instances(Detections(found, kept.scores, kept.classes, kept.sources, kept.best), pixels)


def painted(found: Instances, height: int, width: int) -> NDArray[np.uint8]:
    """Return the number of the instance at each pixel (height, width): 1 for the first, 0 for none.

    Where masks overlap the later class covers the earlier one, and in a class the lower score the higher, as in vis_seg.py.
    """
    picture = np.zeros((height, width), np.uint8)
    for i in np.argsort(found.detections.classes, kind="stable"):
        left, top, right, bottom = found.detections.boxes[i].astype(int)
        picture[top : bottom + 1, left : right + 1][found.masks[i]] = i + 1
    return picture


def _added(boxes: Floats, masks: Floats, weights: Floats, height: int, width: int) -> Floats:
    """Return the sum (height, width) of masks (V, h, w), each drawn into its box of boxes (V, 4), times its weight (V,)."""
    heat = np.zeros((height, width), np.float32)
    for (left, top, right, bottom), mask, weight in zip(boxes, masks, weights, strict=True):
        rows_in, columns_in = _pixels(top, bottom), _pixels(left, right)
        y, x = _places(rows_in, top, bottom, mask.shape[0]), _places(columns_in, left, right, mask.shape[1])
        heat[rows_in[:, None], columns_in] += weight * sampled(mask, y, x)
    return heat


def _pixels(low: np.float32, high: np.float32) -> NDArray[np.intp]:
    """Return the pixels from low to high, both inclusive."""
    return np.arange(math.ceil(low), math.floor(high) + 1)


def _places(pixels: NDArray[np.intp], low: np.float32, high: np.float32, size: int) -> Floats:
    """Return the places on a mask's side of this size of pixels (n,) on a box's side from low to high."""
    places: Floats = (pixels.astype(np.float32) - low) * (np.float32(size) / (high - low + np.float32(1)))
    return places


def _around(pixels: Bools) -> tuple[int, int, int, int]:
    """Return x1, y1, x2, y2 around the True pixels of (H, W). Without any, return the middle pixel."""
    there_y, there_x = (np.flatnonzero(pixels.any(axis=axis)) for axis in (1, 0))
    if not len(there_y):
        middle_y, middle_x = pixels.shape[0] // 2, pixels.shape[1] // 2
        return middle_x, middle_y, middle_x, middle_y
    return int(there_x[0]), int(there_y[0]), int(there_x[-1]), int(there_y[-1])


def _at_masks_size(heat: Floats, box: tuple[int, int, int, int], size: tuple[int, ...]) -> Floats:
    """Return the part of heat (H, W) in the box, at the box's size, resampled by way of the masks' size (h, w).

    The kernel returns masks of that size.
    """
    sides = box[3] - box[1] + 1, box[2] - box[0] + 1
    y, x = (
        np.float32(first) + np.arange(n, dtype=np.float32) * (np.float32(side) / np.float32(n))
        for first, side, n in zip((box[1], box[0]), sides, size, strict=True)
    )
    return resize_bilinear(sampled(heat, y, x)[..., None], *sides)[..., 0]


def sampled(values: Floats, y: Floats, x: Floats) -> Floats:
    """Return the bilinear samples (h, w) of values (H, W) at rows y (h,) and columns x (w,).

    In the last row and in the last column it is the value of the pixel at floor(y), floor(x), as in mv_kernel.cu.
    """
    height, width = values.shape
    top, left = np.floor(y).astype(np.intp), np.floor(x).astype(np.intp)
    between = (top < height - 1)[:, None] & (left < width - 1)
    down, across = between * (y - np.floor(y))[:, None], between * (x - np.floor(x))
    below, beside = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    one = np.float32(1)
    result: Floats = (
        (one - across) * (one - down) * values[top[:, None], left]
        + across * (one - down) * values[top[:, None], beside]
        + (one - across) * down * values[below[:, None], left]
        + across * down * values[below[:, None], beside]
    )
    return result
