"""The scene of examples/shapes after a forward pass of its Faster R-CNN, with the truth, as lessons 3 and 4 use it."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minicaffe import TEST, Net, ops
from minicaffe.blob import Array
from minicaffe.data.settings import read_settings
from minicaffe.detect import score_boxes
from minicaffe.images import load_image
from minicaffe.layers.proposal.proposal import Proposal

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"


@dataclass(frozen=True)
class Scene:
    """Boxes are in pixels of the net's input. anchors (N, 4), scores (N,), deltas (N, 4), boxes (N, 4): moved and clipped."""

    net: Net
    layer: Proposal
    image: Array
    size: tuple[float, float]
    scale: float
    truth: Array
    names: list[str]
    map: tuple[int, int]
    anchors: Array
    scores: Array
    deltas: Array
    boxes: Array

    def anchor(self, row: int, column: int, number: int) -> int:
        """Return the place of an anchor of a cell among all."""
        return (row * self.map[1] + column) * len(self.layer.anchors) + number

    def seen_by_nms(self) -> Array:
        """Return the boxes and scores (N, 5) that NMS sees, best first."""
        sides = self.boxes[:, 2:] - self.boxes[:, :2] + 1
        large = np.flatnonzero((sides >= self.layer.limits.min_size * self.scale).all(axis=1))
        order = large[np.argsort(-self.scores[large], kind="stable")][: self.layer.limits.pre_nms_top_n]
        return np.column_stack([self.boxes[order], self.scores[order]])


@functools.cache
def scene() -> Scene:
    """Run the net on the scene."""
    folder = SHAPES / "faster_rcnn"
    weights, settings = folder / "shapes_faster_rcnn.caffemodel", read_settings(SHAPES / "shapes.yml")
    net = Net(folder / "test.prototxt", TEST, weights=weights, settings=settings)
    image = load_image(SHAPES / "scene.png")
    score_boxes(net, image)
    known = json.loads((SHAPES / "scene.json").read_text(encoding="utf-8"))
    height, width, scale = (float(v) for v in net.blobs["im_info"].data[0])
    layer = net.layer_dict["proposal"]
    assert isinstance(layer, Proposal)
    rows, columns = net.blobs["rpn_cls_prob_reshape"].shape[2:]
    anchors = ops.shifted_anchors(layer.anchors, rows, columns, layer.stride)
    deltas = net.blobs["rpn_bbox_pred"].data[0].transpose(1, 2, 0).reshape(-1, 4)
    return Scene(
        net,
        layer,
        image,
        (height, width),
        scale,
        np.array(known["images"][0]["boxes"]) * scale,
        [known["classes"][number] for number in known["images"][0]["classes"]],
        (rows, columns),
        anchors,
        net.blobs["rpn_cls_prob_reshape"].data[0, len(layer.anchors) :].transpose(1, 2, 0).reshape(-1),
        deltas,
        ops.clip_boxes(ops.bbox_transform_inv(anchors, deltas), (height, width)),
    )
