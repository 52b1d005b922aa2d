"""Output boxes of MS-CNN and Cascade R-CNN: proposals of several fields at each cell, and detections of rois.

At each cell of a map there is a field of fixed size, which four numbers move and stretch.

    centre = cell's centre + clip(t_xy, -1 / field_xyr, 1 / field_xyr) field        (pixels of the image)
    size   = field exp(clip(t_wh, -log field_whr, log field_whr))
    score >= fg_thr, sides >= min_size  ->  best max_nms_num  ->  NMS over all maps of an image  ->  best max_post_nms_num

Source: Cai et al., MS-CNN (arXiv:1607.07155); mscnn's box_output_layer.cpp, cascade-rcnn's box_group_output_layer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.data.boxes import bbox_transform_inv, rows
from minicaffe.layer import Costs, Layer
from minicaffe.layers.proposal.cascade_boxes import suppressed
from minicaffe.layers.proposal.dynamic_tops import DynamicTops
from minicaffe.layers.proposal.nms import DIVISORS, Measure, nms_by
from minicaffe.layers.proposal.proposal import ROIS
from minicaffe.proto import caffe_pb2

NOTHING = (0, 1, 1, 10, 10)
"""The roi if no box is found."""


class FieldBoxesOutput(DynamicTops):
    """The best rois of each image. Subclasses define `candidates`."""

    num_bottom = (1, None)
    num_top = (1, 2)
    weight_names = ()
    has_gradient = False
    dynamic_rois = True
    unit: ClassVar[int]
    """1 if a box's last row and column belong to it, else 0."""

    def candidates(self, bottom: Sequence[Blob], image: int) -> tuple[Array, Array]:
        """Return the corners (n, 4) and scores (n,) of an image's boxes. Of equal scores the first counts."""
        raise NotImplementedError

    @property
    def settings_block(self) -> Any:
        """Return box_output_param or box_group_output_param."""
        return getattr(self.param, self.param_block[0])

    def images(self, bottom: Sequence[Blob]) -> int:
        """Return the number of images."""
        return bottom[0].shape[0]

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        block, name = self.settings_block, self.param_block[0]
        if block.nms_type not in DIVISORS:
            raise self.error(f'nms_type must be one of {", ".join(DIVISORS)}, got "{block.nms_type}"', f"{name}.nms_type")
        for field in ("field_whr", "field_xyr"):
            if not getattr(block, field) > 0:
                raise self.error(f"{field} must be > 0, got {getattr(block, field):g}", f"{name}.{field}")
        self.means, self.stds = regression_scale(self)
        far, stretch = 1 / block.field_xyr, math.log(block.field_whr)
        with np.errstate(over="ignore"):  # 1 / a tiny field_xyr overflows to inf, which sets no bound
            self.bounds = np.array([far, far, stretch, stretch], self.dtype)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Check the tops only: the number of rois is known after forward."""
        self._shape(top, 1)

    def assume_rois(self, bottom: Sequence[Blob], top: Sequence[Blob], rois: int | None) -> None:
        self._shape(top, self.images(bottom) * (rois or self.settings_block.max_post_nms_num or ROIS))

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        # Working memory: each box's deltas, corners, score and order, half of them in float64.
        costs = super().costs(bottom, top, propagate_down)
        return costs._replace(working=sum(blob.count for blob in bottom) * 4 * self.dtype.itemsize)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        block, found = self.settings_block, [np.zeros((0, 6), self.dtype)]
        measure = Measure(self.unit, block.nms_type)
        for image in range(self.images(bottom)):
            boxes, scores = self.candidates(bottom, image)
            order = np.argsort(-scores, kind="stable")[: block.max_nms_num or None]
            dets = np.column_stack([boxes[order], scores[order]])
            best = nms_by(measure, dets, block.iou_thr, block.max_post_nms_num)
            found.append(np.insert(dets[best], 0, image, axis=1))
        rows = np.concatenate(found)
        self._shape(top, max(len(rows), 1))
        for blob, nothing in zip(top, (NOTHING, 0), strict=False):
            blob.data[..., 0, 0] = rows[:, : blob.shape[1]] if len(rows) else nothing

    def _shape(self, top: Sequence[Blob], rois: int) -> None:
        for blob, columns in zip(top, (5, 6), strict=False):
            blob.reshape(rois, columns, 1, 1)

    def sizes(self, deltas: Array, field: tuple[int, int], stride: int) -> tuple[Array, Array]:
        """Return the upper left corners (H, W, 2) and the sizes (H, W, 2) of boxes.

        deltas: (4, H, W); field: width and height.
        """
        moved = deltas.transpose(1, 2, 0) * self.stds + self.means
        moved = np.clip(moved, -self.bounds, self.bounds)
        cells = np.stack(np.meshgrid(*(np.arange(n, dtype=self.dtype) for n in deltas.shape[:0:-1])), axis=-1)
        extent = np.array(field, self.dtype)
        size = extent * np.exp(moved[..., 2:])
        return moved[..., :2] * extent + (cells + self.dtype.type(0.5)) * stride - size / 2, size


def regression_scale(layer: Layer) -> tuple[Array, Array]:
    """Return bbox_reg_param's means and stds (4,), which normalised the deltas; 0 and 1 without. Raises LayerError."""
    given: caffe_pb2.BBoxRegParameter = layer.param.bbox_reg_param
    means, stds = np.array(given.bbox_mean, layer.dtype), np.array(given.bbox_std, layer.dtype)
    if not len(means) and not len(stds):
        return np.zeros(4, layer.dtype), np.ones(4, layer.dtype)
    if len(means) != 4 or len(stds) != 4:
        raise layer.error(f"bbox_mean and bbox_std must be 4 numbers each, got {len(means)} and {len(stds)}", "bbox_reg_param")
    if not (stds > 0).all():
        raise layer.error(f"bbox_std must be > 0, got {stds.tolist()}", "bbox_reg_param.bbox_std")
    return means, stds


class BoxOutput(FieldBoxesOutput):
    """The best rois of each image, by the margin of their best class's score over the background's.

    MS-CNN's proposals, from one map for each size of field.

    bottom: maps (N, K + 4, H_i, W_i): scores of K classes, background first, then the deltas t_x, t_y, t_w, t_h.
    top: rois (R, 5, 1, 1): image, x1, y1, x2, y2 in pixels, width x2 - x1, best first in an image, or one of 0, 1, 1, 10, 10
    if there is none; optionally (R, 6, 1, 1), the same and the score (zeros if there is none).
    box_output_param: field_w, field_h, downsample_rate (pixels), one each for a bottom; thresholds as in the formula; nms_type:
    IOU, or IOMU and IOFU, which divide by the smaller and the better box. bbox_reg_param: the deltas' means and stds.
    Of equal scores the last comes first. No gradient.
    Raises LayerError for another number of sizes than bottoms, and for maps whose images or channels differ in number.
    """

    type = "BoxOutput"
    param_block = ("box_output_param", "bbox_reg_param")
    unit = 0

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        for field in ("field_w", "field_h", "downsample_rate"):
            given = getattr(self.param.box_output_param, field)
            if len(given) != len(bottom):
                raise self.error(f"{len(bottom)} bottoms need {len(bottom)} {field}, got {len(given)}", "box_output_param")
            if not all(given):
                raise self.error(f"{field} must be > 0, got {list(given)}", f"box_output_param.{field}")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        first = bottom[0].shape
        for i, blob in enumerate(bottom):
            if len(blob.shape) != 4 or blob.shape[1] < 6:
                wanted = "(N, K + 4, H, W), with K > 1 classes"
                raise self.error(f"bottom {i} must have the shape {wanted}; got {blob.shape}", f"bottom[{i}]")
            if blob.shape[:2] != first[:2]:
                raise self.error(f"bottoms 0 and {i} must differ in H and W only, got {first} and {blob.shape}", f"bottom[{i}]")

    def candidates(self, bottom: Sequence[Blob], image: int) -> tuple[Array, Array]:
        block, parts = self.param.box_output_param, []
        for blob, *field, stride in zip(bottom, block.field_w, block.field_h, block.downsample_rate, strict=True):
            x = blob.data[image]
            score = x[1:-4].max(axis=0) - x[0]
            corner, size = self.sizes(x[-4:], (field[0], field[1]), stride)
            corner = np.maximum(corner, 0)
            size = np.minimum(size, np.array(x.shape[:0:-1], self.dtype) * stride - corner)
            kept = (score >= block.fg_thr) & (size >= block.min_size).all(axis=-1)
            parts.append(np.column_stack([corner[kept], corner[kept] + size[kept], score[kept]]))
        rows = np.concatenate(parts)[::-1]  # of equal scores, the last comes first
        return rows[:, :4], rows[:, 4]


class BoxGroupOutput(FieldBoxesOutput):
    """The best rois of each image, ordered by 1 - the probability of background.

    Cascade R-CNN's proposals, several fields at each cell.

    bottom: pairs of a map of probabilities (N G, K, H, W), background first, and deltas t_x, t_y, t_w, t_h (N G, 4, H, W), for
    N images of G fields each.
    top: rois (R, 5, 1, 1): image, x1, y1, x2, y2 in pixels, both ends inclusive, best first in an image, or one of
    0, 1, 1, 10, 10 if there is none; optionally (R, 6, 1, 1), the same and the score (zeros if there is none).
    box_group_output_param: a box_group_param for each pair, with its stride (pixels) and G field_w and field_h; thresholds as
    in the formula; nms_type: IOU, or IOMU and IOFU, which divide by the smaller and the better box. bbox_reg_param: the deltas'
    means and stds. x2 and y2 are at most the image's width and height. Of equal scores the first comes first. No gradient.
    Raises LayerError for another number of groups than pairs, for other shapes, and for G that does not divide N G.
    """

    type = "BoxGroupOutput"
    num_bottom = (2, None)
    param_block = ("box_group_output_param", "bbox_reg_param")
    unit = 1

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        self.groups, name = self.param.box_group_output_param.box_group_param, "box_group_output_param"
        if len(bottom) != 2 * len(self.groups):
            pairs = f"{len(bottom)} bottoms, for {len(self.groups)} box_group_param"
            raise self.error(f"takes two bottoms, probabilities and deltas, for each box_group_param, got {pairs}", name)
        for i, group in enumerate(self.groups):
            if len(group.field_w) != len(group.field_h) or not group.field_w:
                sizes = f"{len(group.field_w)} field_w and {len(group.field_h)} field_h"
                raise self.error(f"box_group_param {i} must have as many field_w as field_h, at least one; got {sizes}", name)
            if not (group.stride and all(group.field_w) and all(group.field_h)):
                raise self.error(f"box_group_param {i} must have stride, field_w and field_h > 0", name)

    def images(self, bottom: Sequence[Blob]) -> int:
        return bottom[0].shape[0] // len(self.groups[0].field_w)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        for i, (group, scores, deltas) in enumerate(zip(self.groups, bottom[::2], bottom[1::2], strict=True)):
            count, shape = len(group.field_w), scores.shape
            if len(shape) != 4 or not shape[1] or shape[0] != self.images(bottom) * count:
                wanted = f"(N * {count}, K, H, W), as there are {count} fields"
                raise self.error(f"bottom {2 * i} must have the shape {wanted}; got {shape}", f"bottom[{2 * i}]")
            if deltas.shape != (shape[0], 4, *shape[2:]):
                wanted = f"{(shape[0], 4, *shape[2:])}, as bottom {2 * i} has {shape}"
                raise self.error(f"bottom {2 * i + 1} must have the shape {wanted}; got {deltas.shape}", f"bottom[{2 * i + 1}]")

    def candidates(self, bottom: Sequence[Blob], image: int) -> tuple[Array, Array]:
        block, parts = self.param.box_group_output_param, []
        for group, scores, deltas in zip(self.groups, bottom[::2], bottom[1::2], strict=True):
            for k, field in enumerate(zip(group.field_w, group.field_h, strict=True)):
                at = image * len(group.field_w) + k
                score = 1 - scores.data[at, 0]
                corner, size = self.sizes(deltas.data[at], field, group.stride)
                end = np.minimum(corner + size - 1, np.array(score.shape[::-1], self.dtype) * group.stride)
                corner = np.maximum(corner, 0)
                kept = (score >= block.fg_thr) & (end - corner + 1 >= block.min_size).all(axis=-1)
                parts.append(np.column_stack([corner[kept], end[kept], score[kept]]))
        rows = np.concatenate(parts)
        return rows[:, :4], rows[:, 4]


BLOCK = "frcnn_output_param"


class FrcnnOutput(DynamicTops):
    """Detections (1 + n, 7, 1, 1): image 0, x1, y1, x2, y2 in pixels, class, probability. The first row is 0 and -1s.

    Cascade R-CNN's detections, of one image's rois, their probabilities and regressions.

        rois moved by the deltas, cut to the image -> per class: probability >= conf_thr, NMS
        -> the max_det_num best of all classes

    Source: Cai and Vasconcelos, Cascade R-CNN (arXiv:1712.00726); cascade-rcnn's frcnn_output_layer.cpp and util/bbox_util.cpp.

    bottom: probabilities (R, K), background first; deltas (R, 4 K), or (R, 8) with cls_aware: false, of which the last four
    are every class's; rois (R, 5) or (R, 6): 0, x1, y1, x2, y2, both ends inclusive, a sixth number is not read; the image's
    height and width (1, 2). top: detections by class, and by probability, best first; of equal ones the first roi first.
    x2 and y2 are at most the width and height. bbox_reg_param: the deltas' means and stds. nms_type: IOU, or IOMU and IOFU,
    which divide by the smaller and the better box. No gradient.
    Raises LayerError for shapes that do not match, a roi of another image, and one whose end is before its start.
    """

    type = "FrcnnOutput"
    num_bottom = 4
    num_top = 1
    param_block = (BLOCK, "bbox_reg_param")
    weight_names = ()
    has_gradient = False

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        kind = self.param.frcnn_output_param.nms_type
        if kind not in DIVISORS:
            raise self.error(f'nms_type must be one of {", ".join(DIVISORS)}, got "{kind}"', f"{BLOCK}.nms_type")
        self.means, self.stds = regression_scale(self)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        scores, deltas, rois, size = (blob.shape for blob in bottom)
        if len(scores) < 2 or scores[1] < 2 or bottom[0].count != scores[0] * scores[1]:
            raise self.error(f"bottom 0 must be probabilities (R, K) of K > 1 classes, got shape {scores}", "bottom[0]")
        each = 4 * scores[1] if self.param.bbox_reg_param.cls_aware else 8
        for i, shape, wanted in ((1, deltas, (each,)), (2, rois, (5, 6))):
            if shape[:1] != scores[:1] or not any(bottom[i].count == scores[0] * n and shape[1] == n for n in wanted):
                numbers = " or ".join(map(str, wanted))
                raise self.error(
                    f"bottom {i} must be {(scores[0], numbers)}, got shape {shape}".replace("'", ""), f"bottom[{i}]"
                )
        if bottom[3].count != 2:
            raise self.error(f"bottom 3 must be one image's height and width (1, 2), got shape {size}", "bottom[3]")
        top[0].reshape(1, 7, 1, 1)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, scores = self.param.frcnn_output_param, rows(bottom[0])
        boxes = self._boxes(bottom)
        parts = []
        for label in range(1, scores.shape[1]):
            own, which = scores[:, label], np.flatnonzero(scores[:, label] >= self.dtype.type(param.conf_thr))
            which = which[np.argsort(-own[which], kind="stable")]
            found = boxes[which, label if boxes.shape[1] > 2 else -1]
            best = suppressed(found, param.iou_thr, param.nms_type)
            parts.append(np.column_stack([0 * own[which[best]], found[best], 0 * own[which[best]] + label, own[which[best]]]))
        found = np.concatenate(parts)
        if 0 < param.max_det_num < len(found):
            best = np.argsort(-found[:, 6], kind="stable")[: param.max_det_num]
            found = found[np.sort(best)]
        top[0].reshape(1 + len(found), 7, 1, 1)
        top[0].data[0, :, 0, 0] = (0, *[-1] * 6)
        top[0].data[1:, :, 0, 0] = found

    def _boxes(self, bottom: Sequence[Blob]) -> Array:
        """Return each roi's corners (R, K or 2, 4) from the deltas. Raises LayerError for invalid rois."""
        deltas, rois = rows(bottom[1]), rows(bottom[2])
        wrong = (rois[:, 0] != 0) | (rois[:, 3:5] < rois[:, 1:3]).any(axis=1)
        for roi in rois[wrong, :5][:1]:
            given = ", ".join(f"{value:g}" for value in roi)
            raise self.error(f"takes rois of image 0 with x1 <= x2 and y1 <= y2, got {given}", "bottom[2]")
        moved = deltas.reshape(len(deltas), deltas.shape[1] // 4, 4) * self.stds + self.means
        boxes = bbox_transform_inv(rois[:, 1:5], moved.reshape(deltas.shape)).reshape(moved.shape)
        boxes[..., 2:] -= 1  # both ends are inclusive
        np.maximum(boxes[..., :2], 0, out=boxes[..., :2])
        np.minimum(boxes[..., 2:], bottom[3].data.reshape(-1)[::-1], out=boxes[..., 2:])
        return boxes
