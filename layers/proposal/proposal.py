"""Proposal: rois from the RPN's scores and deltas. Also stands in for rpn.proposal_layer.ProposalLayer.

    anchors + deltas -> clipped to the image -> large enough -> best pre_nms_top_n by score -> NMS -> best post_nms_top_n

With proposal_param it is a fork's in C++: there a box that is too small stays, with the score 0.

Source: Faster R-CNN (arXiv:1506.01497), section 3.1; py-faster-rcnn's rpn/proposal_layer.py, and py-R-FCN's, which
un-normalises the deltas while training with RPN_NORMALIZE_TARGETS.

Anchors and limits from proposal_param, which forks' Proposal layers in C++ read and make different anchors from.

    ratio r, scale s, base size b:    PVANET's       w = s round(b / sqrt(r)),  h = s round(round(b / sqrt(r)) r)
                                      happynear's    w = round(s / sqrt(r)),    h = round(s sqrt(r))

Source: proposal_layer.cpp of Intel's training_toolbox_caffe (PVANET's, as is mini-caffe's) and of happynear's caffe-windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.proposal import ProposalKernels
from minicaffe.data.boxes import bbox_transform_inv, clip_boxes, large_enough
from minicaffe.data.settings import DetectionSettings
from minicaffe.errors import LayerError
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layer import Costs, Layer
from minicaffe.layers.proposal.anchors import MOST, by_position, layer_anchors, shifted_anchors
from minicaffe.layers.proposal.nms import kept_boxes, nms
from minicaffe.layers.proposal.param_str import ROI_ROWS, ROI_SCORES, StandIn, TopName
from minicaffe.mode import TRAIN, Phase
from minicaffe.proto import caffe_pb2

from .dynamic_tops import DynamicTops

PVANET, HAPPYNEAR = "PVANET", "happynear"
KINDS = (
    Kind(PVANET, ("pvanet",), "proposal_param's scale counts in base_size"),
    Kind(HAPPYNEAR, ("happynear",), "proposal_param's scale counts in pixels"),
)
BLOCK = "proposal_param"


def param_anchors(param: caffe_pb2.ProposalParameter, whose: str) -> Array:
    """Return anchors (A, 4) around the base box's centre, ratios outermost."""
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
    """Return x rounded as by the originals: x + 0.5 cast to int."""
    return np.trunc(x + 0.5)


def check_param(layer: Layer) -> None:
    """Raise LayerError for parameters that make no anchors."""
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


@dataclass(frozen=True)
class ProposalLimits:
    """The limits of proposals. min_size is in pixels of the unscaled image; a top_n of 0 or less means all."""

    pre_nms_top_n: int
    post_nms_top_n: int
    nms_threshold: float
    min_size: float


ROIS = 300
"""The assumed number of rois if nothing limits it."""


class Proposal(DynamicTops, Forked, StandIn):
    """The best rois of one image.

    bottom: scores (1, 2 A, H, W), the A foreground ones last; deltas (1, 4 A, H, W); im_info (1, 3): height, width, scale.
    top: rois (R, 5): 0, x1, y1, x2, y2 in pixels of the scaled image, best first; optionally their scores (R, 1).
    param_str: feat_stride (pixels), optionally base_size (pixels), scales and ratios. The phase's settings give the limits.
    R may be 0. No gradient flows through it.
    proposal_param: the anchors and the limits, in place of param_str and the settings; the anchors depend on the net's fork.
    im_info may then have a fourth number, the scale of x, the third being that of y; the scores are (R,).
    Raises LayerError for more than one image, for shapes that do not fit the anchors, and for proposal_param without a fork.
    """

    type = "Proposal"
    num_bottom = 3
    num_top = (1, 2)
    param_block: ClassVar[tuple[str, ...]] = ("python_param", "proposal_param")
    has_gradient = False
    dynamic_rois = True
    kinds: ClassVar[tuple[Kind, ...]] = KINDS
    uses_kernels = ((kept_boxes,), ())
    param_keys: ClassVar[tuple[str, ...]] = ("feat_stride", "base_size", "scales", "ratios")
    inert_keys: ClassVar[tuple[str, ...]] = ("allowed_border", "num_classes")

    @classmethod
    def top_names(cls, count: int) -> Sequence[TopName]:
        return (ROI_ROWS, ROI_SCORES) if count == 2 else ()

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.by_param = self.param.HasField("proposal_param") and not self.param.HasField("python_param")
        if self.by_param:
            self._setup_by_param(top)
            return
        self.anchors, self.stride = self.given_anchors(bottom[0])
        self.limits = limits_of(self.settings, self.phase)
        train = self.settings.train
        self.unnormalise = self.phase == TRAIN and train.rpn_normalize_targets
        self.means, self.stds = train.rpn_normalize_means, train.rpn_normalize_stds
        normal = [self.stds, self.means] if self.unnormalise else None
        self._kernels = ProposalKernels(self.dtype, self.anchors, self.stride, normal)
        top[0].reshape(1, 5)
        if len(top) > 1:
            top[1].reshape(1, 1)

    def given_anchors(self, scores: Blob) -> tuple[Array, int]:
        """Return the anchors (A, 4) around one position, and the stride in pixels. scores: (1, 2 A, H, W)."""
        return layer_anchors(self, scores)

    def _setup_by_param(self, top: Sequence[Blob]) -> None:
        whose = self.choose_by_fork()
        if not whose:
            raise self.ambiguous_kind_error()
        check_param(self)
        given = self.param.proposal_param
        self.anchors, self.stride = param_anchors(given, whose), given.feat_stride
        self.limits = ProposalLimits(given.pre_nms_topn, given.post_nms_topn, given.nms_thresh, given.min_size)
        self.unnormalise = False
        top[0].reshape(1, 5)
        for scores in top[1:]:
            scores.reshape(1)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Check the tops only: the number of rois is known after forward."""
        scores, deltas, info = (b.shape for b in bottom)
        count = len(self.anchors)
        if scores[:1] != (1,) or deltas[:1] != (1,):
            raise self.error(f"takes one image, got scores of shape {scores} and deltas of shape {deltas}", "bottom[0]")
        if scores[1:2] != (2 * count,) or len(scores) != 4:
            hint = self.anchors_hint(scores[1] if len(scores) == 4 else 0)
            raise self.error(f"{count} anchors need scores of shape (1, {2 * count}, H, W), got {scores}{hint}", "bottom[0]")
        if deltas != (1, 4 * count, *scores[2:]):
            raise self.error(f"{count} anchors need deltas of shape {(1, 4 * count, *scores[2:])}, got {deltas}", "bottom[1]")
        if bottom[2].count < 3:
            raise self.error(f"im_info must be (1, 3): height, width, scale; got shape {info}", "bottom[2]")

    def assume_rois(self, bottom: Sequence[Blob], top: Sequence[Blob], rois: int | None) -> None:
        count = rois or max(self.limits.post_nms_top_n, 0) or ROIS
        for blob in top:
            blob.reshape(count, *blob.shape[1:])

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        # Working memory: for each anchor a box in float64 and about 21 numbers.
        costs = super().costs(bottom, top, propagate_down)
        return costs._replace(working=bottom[0].count // 2 * (32 + 21 * self.dtype.itemsize))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        info = bottom[2].data.reshape(-1)[: 4 if self.by_param else 3]
        if not (np.isfinite(info).all() and (info > 0).all()):
            raise self._no_image(bottom[2])
        propose = proposals_by_param if self.by_param else proposals
        boxes, scores = propose(*self.by_anchor(bottom[0].data, bottom[1].data), info, self.limits)
        top[0].reshape(len(boxes), 5)
        top[0].data[:, 0] = 0
        top[0].data[:, 1:] = boxes
        for blob in top[1:]:
            blob.reshape((len(boxes),) if self.by_param else (len(boxes), 1))
            blob.data[...] = scores.reshape(blob.shape)

    def by_anchor(self, scores: Array, deltas: Array) -> tuple[Array, Array, Array]:
        """Return the anchors (N, 4) of all positions, their scores (N,) and deltas (N, 4), from the two bottoms' numbers."""
        height, width = scores.shape[2:]
        anchors = shifted_anchors(self.anchors, height, width, self.stride)
        deltas = by_position(deltas, 4)
        if self.unnormalise:  # py-R-FCN trains the RPN on normalised targets
            deltas = deltas * np.array(self.stds, self.dtype) + np.array(self.means, self.dtype)
        return anchors, by_position(scores[:, len(self.anchors) :], 1)[:, 0], deltas

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Run on the GPU. The number of rois is copied to the host, for the top's shape."""
        if bottom[0].count and not self.by_param:
            self._kernels.run(bottom, top, self.limits, lambda _: self._no_image(bottom[2]))
        else:
            super().forward_gpu(bottom, top)

    def _no_image(self, im_info: Blob) -> LayerError:
        given = im_info.read_data().reshape(-1)[:3].tolist()
        return self.error(f"im_info must be a positive height, width and scale, got {given}", "bottom[2]")


def limits_of(settings: DetectionSettings, phase: Phase) -> ProposalLimits:
    """Return the proposal limits of a phase."""
    given = settings.train if phase == TRAIN else settings.test
    return ProposalLimits(given.rpn_pre_nms_top_n, given.rpn_post_nms_top_n, given.rpn_nms_thresh, given.rpn_min_size)


def proposals(anchors: Array, scores: Array, deltas: Array, im_info: Array, limits: ProposalLimits) -> tuple[Array, Array]:
    """Return boxes (R, 4) and their scores (R,), best first.

    anchors (N, 4), scores (N,), deltas (N, 4), im_info (3,).
    """
    boxes = clip_boxes(bbox_transform_inv(anchors, deltas), im_info[:2])
    # min_size refers to the unscaled image, boxes to the scaled one.
    kept = np.flatnonzero(large_enough(boxes, limits.min_size * im_info[2]))
    return _best(boxes, scores, kept, limits)


def proposals_by_param(
    anchors: Array, scores: Array, deltas: Array, im_info: Array, limits: ProposalLimits
) -> tuple[Array, Array]:
    """Return the proposals of layers with proposal_param, as `proposals` does. im_info (3,) or (4,)."""
    boxes = clip_boxes(bbox_transform_inv(anchors, deltas), im_info[:2])
    least = limits.min_size * im_info[[-1, 2]]  # for x and for y
    large = np.all(boxes[:, 2:] - boxes[:, :2] + 1 >= least, axis=1)
    return _best(boxes, scores * large, np.arange(len(boxes)), limits)


def _best(boxes: Array, scores: Array, kept: Array, limits: ProposalLimits) -> tuple[Array, Array]:
    """Return the kept boxes that remain after the limits and NMS, and their scores, best first."""
    order = kept[np.argsort(-scores[kept], kind="stable")]  # stable: of equal scores, the earlier anchor comes first
    if limits.pre_nms_top_n > 0:
        order = order[: limits.pre_nms_top_n]
    dets = np.column_stack([boxes[order], scores[order]])
    best = order[nms(dets, limits.nms_threshold, max(limits.post_nms_top_n, 0))]
    return boxes[best], scores[best]
