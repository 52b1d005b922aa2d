"""Proposals of MS-CNN: at each cell of a map a field of fixed size, moved and stretched by four numbers.

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
from minicaffe.layer import Layer
from minicaffe.layers.proposal.nms import DIVISORS, Measure, nms_by
from minicaffe.layers.proposal.proposal import ROIS
from minicaffe.proto import caffe_pb2

NOTHING = (0, 1, 1, 10, 10)
"""The roi where no box is found."""


class FieldBoxesOutput(Layer):
    """The best rois of each image; a layer of the family writes `candidates`."""

    num_bottom = (1, None)
    num_top = (1, 2)
    weight_names = ()
    has_gradient = False
    makes_rois = True
    found_axis = 0
    unit: ClassVar[int]
    """1 where a box's last row and column belong to it."""

    def candidates(self, bottom: Sequence[Blob], image: int) -> tuple[Array, Array]:
        """The corners (n, 4) and scores (n,) of an image's boxes; of equal scores the first counts."""
        raise NotImplementedError

    @property
    def settings_block(self) -> Any:
        """box_output_param, or box_group_output_param."""
        return getattr(self.param, self.param_block[0])

    def images(self, bottom: Sequence[Blob]) -> int:
        """How many images there are."""
        return bottom[0].shape[0]

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        block, name = self.settings_block, self.param_block[0]
        if block.nms_type not in DIVISORS:
            raise self.error(f'nms_type must be one of {", ".join(DIVISORS)}, got "{block.nms_type}"', f"{name}.nms_type")
        for field in ("field_whr", "field_xyr"):
            if not getattr(block, field) > 0:
                raise self.error(f"{field} must be > 0, got {getattr(block, field):g}", f"{name}.{field}")
        self.index_bottoms = tuple(range(len(bottom)))
        self.means, self.stds = regression_scale(self)
        far, stretch = 1 / block.field_xyr, math.log(block.field_whr)
        with np.errstate(over="ignore"):  # 1 / a tiny field_xyr is no bound
            self.bounds = np.array([far, far, stretch, stretch], self.dtype)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Checks only: how many rois there are is known after forward."""
        self._shape(top, 1)

    def suppose_rois(self, bottom: Sequence[Blob], top: Sequence[Blob], rois: int | None) -> None:
        self._shape(top, self.images(bottom) * (rois or self.settings_block.max_post_nms_num or ROIS))

    def working_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> int:
        """For each box its deltas, corners, score and order, and half of it in float64."""
        return sum(blob.count for blob in bottom) * 4 * self.dtype.itemsize

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
        """The left upper corners (H, W, 2) and the sizes (H, W, 2) of boxes; deltas (4, H, W), field: width and height."""
        moved = deltas.transpose(1, 2, 0) * self.stds + self.means
        moved = np.clip(moved, -self.bounds, self.bounds)
        cells = np.stack(np.meshgrid(*(np.arange(n, dtype=self.dtype) for n in deltas.shape[:0:-1])), axis=-1)
        extent = np.array(field, self.dtype)
        size = extent * np.exp(moved[..., 2:])
        return moved[..., :2] * extent + (cells + self.dtype.type(0.5)) * stride - size / 2, size


def regression_scale(layer: Layer) -> tuple[Array, Array]:
    """bbox_reg_param's means and stds (4,), by which deltas were normalised; 0 and 1 without. Raises LayerError."""
    given: caffe_pb2.BBoxRegParameter = layer.param.bbox_reg_param
    means, stds = np.array(given.bbox_mean, layer.dtype), np.array(given.bbox_std, layer.dtype)
    if not len(means) and not len(stds):
        return np.zeros(4, layer.dtype), np.ones(4, layer.dtype)
    if len(means) != 4 or len(stds) != 4:
        raise layer.error(f"bbox_mean and bbox_std must be 4 numbers each, got {len(means)} and {len(stds)}", "bbox_reg_param")
    if not (stds > 0).all():
        raise layer.error(f"bbox_std must be > 0, got {stds.tolist()}", "bbox_reg_param.bbox_std")
    return means, stds
