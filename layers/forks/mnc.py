"""Layers of multi-task network cascades (MNC), for its test nets.

    MaskLayer: masks (R, S^2) as maps (R, 1, S, S)
    StageBridgeLayer: each roi moved by the regression of its best class, cut to the image
    ProposalLayer: py-faster-rcnn's but for training
    MaskResize: y = A x B^T, maps resized bilinearly

Place i of MaskResize's output lies at i (input size / output size) of the input: rows have their bilinear weights in A (h, H),
columns in B (w, W). Beyond the last pixel, that pixel counts.
Source: Dai et al., MNC (arXiv:1512.04412); MNC's lib/pylayer/mask_layer.py, stage_bridge_layer.py and proposal_layer.py;
caffe-mnc's mask_resize_layer.cu.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.data.boxes import bbox_transform_inv, clip_boxes, rows
from minicaffe.layer import Layer, Unary
from minicaffe.layers.proposal.param_str import StandIn
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.mode import TRAIN


class MaskResize(Unary):
    """y = A x B^T for each map, bilinear in both directions; dx = A^T dy B.

    bottom: x (N, C, H, W). top: y (N, C, output_height, output_width), of mask_resize_param.
    Raises LayerError when x has not four axes or no pixel, and for a size of 0.
    """

    type = "MaskResize"
    param_block = ("mask_resize_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.mask_resize_param
        if not (param.output_height and param.output_width):
            raise self.error("needs output_height > 0 and output_width > 0", "mask_resize_param")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, param = bottom[0].shape, self.param.mask_resize_param
        if len(shape) != 4 or not (shape[2] and shape[3]):
            raise self.error(f"x must be (N, C, H, W) with pixels, got shape {shape}", "bottom[0]")
        top[0].reshape(*shape[:2], param.output_height, param.output_width)
        self.rows = weights(shape[2], param.output_height).astype(self.dtype)
        self.columns = weights(shape[3], param.output_width).astype(self.dtype)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[...] = self.rows @ bottom[0].data @ self.columns.T

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            bottom[0].diff[...] = self.rows.T @ top[0].diff @ self.columns


def weights(size: int, output: int) -> Array:
    """Return each pixel's weight in each output position (output, size)."""
    at = np.arange(output) * (size / output)
    low = np.minimum(at.astype(int), size - 1)
    high, places = np.minimum(low + 1, size - 1), np.arange(output)
    matrix = np.zeros((output, size))
    np.add.at(matrix, (places, low), 1 - (at - low))
    np.add.at(matrix, (places, high), at - low)
    return matrix


GRADIENT_KEYS = ("gradient_scale", "use_clip", "clip_base")
"""Keys of param_str that count only in phase TRAIN."""


def check_phase(layer: Layer) -> None:
    """Raise LayerError in phase TRAIN, in which MNC's layers need true masks."""
    if layer.phase == TRAIN:
        message = "MNC (github.com/daijifeng001/MNC) matches with the true masks in phase TRAIN, which is not built in"
        raise layer.error(message, "python_param.module")


class MNCMask(StandIn):
    """Masks as maps, in phase TEST. Stands in for pylayer.mask_layer.MaskLayer.

    bottom: masks (R, S^2), row by row. top: (R, 1, S, S).
    Raises LayerError in phase TRAIN, and for a number of values that is no square.
    """

    num_bottom = 1
    num_top = 1

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        check_phase(self)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        values = math.prod(shape[1:])
        side = math.isqrt(values)
        if len(shape) < 2 or side**2 != values:
            raise self.error(f"masks must be (R, S^2), got shape {shape}", "bottom[0]")
        top[0].reshape(shape[0], 1, side, side)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[...] = bottom[0].data.reshape(top[0].shape)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            bottom[0].diff[...] = top[0].diff.reshape(bottom[0].shape)


class MNCStageBridge(StandIn):
    """The rois of the second stage, in phase TEST. Stands in for pylayer.stage_bridge_layer.StageBridgeLayer.

    bottom: rois (R, 5): image, x1, y1, x2, y2 in pixels; deltas (R, 4 K); scores (R, K), background first, which may be the
    best; im_info (1, 3): height, width, scale. top: rois (R, 5): 0, x1, y1, x2, y2. Of equal scores the first class's. No
    gradient.
    Raises LayerError in phase TRAIN, and for shapes that do not match.
    """

    num_bottom = 4
    num_top = 1
    has_gradient = False
    inert_keys = (*GRADIENT_KEYS, "feat_stride", "num_classes")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        check_phase(self)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        count, classes = bottom[2].shape[0], math.prod(bottom[2].shape[1:])
        for i, blob, each in ((0, bottom[0], 5), (1, bottom[1], 4 * classes)):
            if blob.shape[:1] != (count,) or blob.count != count * each or not classes:
                wanted = f"({count}, {each}), as there are scores of shape {bottom[2].shape}"
                raise self.error(f"bottom {i} must be {wanted}; got {blob.shape}", f"bottom[{i}]")
        if bottom[3].count < 3:
            raise self.error(f"im_info must be (1, 3): height, width, scale; got shape {bottom[3].shape}", "bottom[3]")
        top[0].reshape(count, 5)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        rois, deltas, scores = (rows(blob) for blob in bottom[:3])
        boxes = bbox_transform_inv(rois[:, 1:], deltas).reshape(*scores.shape, 4)
        best = boxes[np.arange(len(boxes)), scores.argmax(axis=1)]
        top[0].data[:, 0] = 0
        top[0].data[:, 1:] = clip_boxes(best, bottom[3].data.reshape(-1))


class MNCProposal(Proposal):
    """The best rois of one image, in phase TEST. Stands in for pylayer.proposal_layer.ProposalLayer.

    As Proposal. Raises LayerError in phase TRAIN, in which MNC gives the deltas gradients of the rois.
    """

    type = "Python"
    param_keys = ("feat_stride",)
    inert_keys = GRADIENT_KEYS

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.phase == TRAIN:
            message = (
                "MNC (github.com/daijifeng001/MNC) gives the deltas gradients of the rois in phase TRAIN, which is not built in"
            )
            raise self.error(message, "python_param.module")
        super().setup(bottom, top)
