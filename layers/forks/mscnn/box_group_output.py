"""BoxGroupOutput: Cascade R-CNN's proposals, several fields at each cell. Formula and source are in field_boxes.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob

from .field_boxes import FieldBoxesOutput


class BoxGroupOutput(FieldBoxesOutput):
    """The best rois of each image, by 1 - the probability of background.

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
