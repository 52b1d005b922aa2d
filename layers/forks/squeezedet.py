"""SqueezeDet's anchors, which are moved and stretched to boxes, and SqueezeDetLoss.

    per image of M objects and K anchors, with the anchor k whose box overlaps the object most and their overlap IOU:
    lambda_conf / M  sum -log(p_k of the class + epsilon)  +  pos_conf / M  sum (c_k - IOU)^2
    + neg_conf / (K - M)  sum of c^2 over all anchors but k, for each object  +  lambda_bbox / M  sum (t_k - t*)^2

    box = (centre + anchor t_xy, anchor exp(t_hw)), cut to the image; t* = ((centre* - centre) / anchor, log(size* / anchor))

Source: Wu et al., SqueezeDet (arXiv:1612.01051); kvmanohar22/caffe's squeezedet_loss_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.layer import Costs, data_bytes
from minicaffe.layers.loss.loss import Loss


def grid(sizes: Array, height: int, width: int, side: int) -> Array:
    """Return the anchors (K, 4): centre, width, height.

    There are A of them, of sizes (A, 2) in pixels, in each of height x width cells of a square image. Cell i is centred in
    column i / height and row i mod height, from 1, of width + 1 by height + 1, as in the fork.
    """
    column, row = np.divmod(np.arange(height * width), height)
    centres = np.stack([(column + 1) * side / (width + 1), (row + 1) * side / (height + 1)], axis=1)
    return np.concatenate([np.repeat(centres, len(sizes), axis=0), np.tile(sizes, (height * width, 1))], axis=1)


def decoded(anchors: Array, moves: Array, side: int) -> Array:
    """Return the corners (K, 4) of moved anchors, clipped to an image.

    anchors (K, 4): centre, width, height; moves (K, 4): x, y, height, width.
    """
    with np.errstate(over="ignore"):
        centres, sizes = anchors[:, :2] + anchors[:, 2:] * moves[:, :2], anchors[:, 2:] * np.exp(moves[:, :1:-1])
    corners: Array = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)
    return corners.clip(0, side - 1)


def overlaps(boxes: Array, others: Array, epsilon: float) -> Array:
    """Return the intersection over union (M, K) of boxes (M, 4) and others (K, 4), the union enlarged by epsilon."""
    low, high = np.maximum(boxes[:, None, :2], others[None, :, :2]), np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = np.maximum(high - low, 0).prod(axis=-1)
    areas, other_areas = ((of[:, 2:] - of[:, :2]).prod(axis=1) for of in (boxes, others))
    found: Array = shared / (areas[:, None] + other_areas[None] - shared + epsilon)
    return found


def targets(anchors: Array, boxes: Array, epsilon: float) -> Array:
    """Return the moves (M, 4) from anchors (M, 4) to boxes (M, 4), whose last row and column belong to them."""
    sizes = boxes[:, 2:] - boxes[:, :2] + 1
    shifts = (boxes[:, :2] + sizes / 2 - anchors[:, :2]) / anchors[:, 2:]
    return np.concatenate([shifts, np.log(sizes / anchors[:, 2:] + epsilon)[:, ::-1]], axis=1)


BLOCK = "squeezedet_param"
NEEDED = ("classes", "anchors_per_grid", "pos_conf", "neg_conf", "lambda_bbox")
SIDE = 416
"""The image's width and height in pixels, if transform_param has no crop_size."""


class SqueezeDetLoss(Loss):
    """The sum of four terms, averaged over the images; 0 for an image without objects.

    bottom: class probabilities (N, K, classes), of any shape with as many values; confidences c (N, H, W, A); t (N, H, W, 4 A):
    x, y, height, width of each anchor; labels (N, 5 T): x1, y1, x2, y2 in pixels, class from 0, with -1 after the last.
    top: loss (). anchor_shapes: width and height of the A anchors, in pixels. The image is crop_size or 416 pixels wide and
    high; `grid` places the anchors.
    Backward is the gradient of the loss with IOU as a constant.
    Raises LayerError for missing fields and shapes that do not match, and for a class that is unknown, a box that ends before
    it starts, and as many objects as anchors.
    """

    type = "SqueezeDetLoss"
    num_bottom = 4
    index_bottoms = (3,)
    param_block = (BLOCK, "transform_param")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.squeezedet_param
        given = {field.name for field, _ in param.ListFields()}
        for field in NEEDED:
            if field not in given:
                raise self.error(f"needs {field}", BLOCK)
        if len(param.anchor_shapes) != 2 * param.anchors_per_grid or not all(param.anchor_shapes):
            wanted = f"{2 * param.anchors_per_grid} anchor_shapes > 0, a width and a height for each anchor"
            raise self.error(f"needs {wanted}; got {list(param.anchor_shapes)}", f"{BLOCK}.anchor_shapes")
        self.side = self.param.transform_param.crop_size or SIDE

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        param, shape = self.param.squeezedet_param, bottom[1].shape
        each = param.anchors_per_grid
        if len(shape) != 4 or shape[3] != each or not each or 0 in shape:
            raise self.error(f"bottom 1 must be (N, H, W, {each}), got shape {shape}", "bottom[1]")
        images, height, width = shape[:3]
        cells = height * width
        for i, count in ((0, cells * each * param.classes), (2, cells * each * 4)):
            if bottom[i].shape[:1] != (images,) or bottom[i].count != images * count:
                raise self.error(
                    f"bottom {i} must have ({images}, {count}) values, got shape {bottom[i].shape}", f"bottom[{i}]"
                )
        if bottom[3].shape[:1] != (images,) or bottom[3].count % (5 * images):
            raise self.error(f"the labels must be ({images}, 5 T), got shape {bottom[3].shape}", "bottom[3]")
        self.anchors = grid(np.array(param.anchor_shapes, float).reshape(each, 2), height, width, self.side)  # (K, 4)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        costs = super().costs(bottom, top, propagate_down)
        return costs._replace(saved=data_bytes(bottom[:3]), working=4 * data_bytes(bottom[2:3]))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, images, anchors = self.param.squeezedet_param, bottom[1].shape[0], len(self.anchors)
        shapes = (images, anchors, param.classes), (images, anchors), (images, anchors, 4)
        found = [blob.data.reshape(shape) for blob, shape in zip(bottom, shapes)]
        self._slopes = [np.zeros(shape, self.dtype) for shape in shapes]
        loss = 0.0
        for i in range(images):
            boxes, kinds = self._objects(bottom[3].data.reshape(images, -1, 5)[i])
            if len(boxes):
                loss += self._image([x[i] for x in found], [slopes[i] for slopes in self._slopes], boxes, kinds) / images
        top[0].data[...] = loss

    def _image(self, found: list[Array], slopes: list[Array], boxes: Array, kinds: NDArray[np.intp]) -> float:
        """Return the loss of an image with these objects. Write the slopes of its part of the mean."""
        param, objects, images = self.param.squeezedet_param, len(boxes), len(self._slopes[0])
        probabilities, confidences, moves = (x.astype(float) for x in found)
        shared = overlaps(boxes, decoded(self.anchors, moves, self.side), param.epsilon)
        best = shared.argmax(axis=1)
        told = probabilities[best, kinds] + param.epsilon
        missed = confidences[best] - shared[np.arange(objects), best]
        differences = moves[best] - targets(self.anchors[best], boxes, param.epsilon)
        classes, right, boxed = (weight / objects for weight in (param.lambda_conf, param.pos_conf, param.lambda_bbox))
        wrong = param.neg_conf / (len(self.anchors) - objects)
        slopes[1][...] = 2 * wrong / images * (objects - np.bincount(best, minlength=len(confidences))) * confidences
        for i, at, values in (
            (0, (best, kinds), -classes / told),
            (1, best, 2 * right * missed),
            (2, best, 2 * boxed * differences),
        ):
            np.add.at(slopes[i], at, values / images)  # add.at, because several objects may have the same anchor
        others = objects * (confidences**2).sum() - (confidences[best] ** 2).sum()
        return float(
            -classes * np.log(told).sum() + right * (missed**2).sum() + wrong * others + boxed * (differences**2).sum()
        )

    def _objects(self, rows: Array) -> tuple[Array, NDArray[np.intp]]:
        """Return the boxes (M, 4) and classes (M,) of an image's labels (T, 5)."""
        ends, classes = np.flatnonzero(rows[:, 0] == -1), self.param.squeezedet_param.classes
        rows = rows[: ends[0] if len(ends) else None].astype(float)
        wrong = ~np.isin(rows[:, 4], np.arange(classes)) | (rows[:, 2:4] < rows[:, :2]).any(axis=1)
        for *box, kind in rows[wrong][:1].tolist():
            raise self.error(f"the box {box} of class {kind:g} is none, or no class from 0 to {classes - 1}", "bottom[3]")
        if len(rows) >= len(self.anchors):
            raise self.error(f"{len(rows)} objects need more than {len(self.anchors)} anchors", "bottom[3]")
        return rows[:, :4], rows[:, 4].astype(np.intp)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        for blob, wanted, slopes in zip(bottom, propagate_down, self._slopes):
            if wanted:
                np.multiply(slopes.reshape(blob.shape), top[0].diff, out=blob.diff)
