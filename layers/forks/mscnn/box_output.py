"""BoxOutput: MS-CNN's proposals, from one map for each size of field. The formula and source are in field_boxes.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob

from .field_boxes import FieldBoxesOutput


class BoxOutput(FieldBoxesOutput):
    """The best rois of each image, by how far their best class's score is above the background's.

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
        rows = np.concatenate(parts)[::-1]  # of equal scores the last comes first
        return rows[:, :4], rows[:, 4]
