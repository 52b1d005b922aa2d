"""Random layers of detection that stand alone: SSD's loss and its detections, the hardest rois of R-FCN."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from net_builder import Array, Builder


def box_annotator(b: Builder) -> None:
    rois, channels = b.distinct((2, 6), (1, 8))
    images = np.sort(b.random.integers(0, 2, rois)).astype(float).reshape(rois, 1, 1, 1)
    boxes = b.input(np.concatenate([images, b.normal(rois, 4, 1, 1)], axis=1), "boxes")
    losses = b.input(abs(b.normal(rois, 1, 1, 1)), "losses")
    labels = b.input(b.random.integers(0, 4, (rois, 1, 1, 1)).astype(float), "labels")
    weights = b.input(b.normal(rois, channels, 1, 1), "weights")
    words = f"box_annotator_ohem_param {{ roi_per_img: {b.whole(1, 4)} }}"
    b.add("BoxAnnotatorOHEM", [boxes, losses, labels, weights], words, tops=2, dead=[0, 1])


def boxes(b: Builder, count: int) -> Array:
    """Boxes (count, 4) in a picture of 1 x 1."""
    first = b.random.uniform(0, 0.7, (count, 2))
    return np.hstack([first, first + b.random.uniform(0.1, 0.3, (count, 2))])


def priors(b: Builder, count: int) -> str:
    values = np.stack([boxes(b, count).reshape(-1), np.tile([0.1, 0.1, 0.2, 0.2], count)])
    return b.input(values[None], "priors")


def scores(b: Builder) -> tuple[str, str, str, int, int]:
    """Blobs loc and conf, computed from one blob or two, priors; how many classes and images."""
    count, classes = b.whole(2, 6), b.whole(2, 4)
    x = b.pick()
    y = b.pick(where=lambda shape: shape[0] == b.shape(x)[0])
    axis = "axis: 1" if min(len(b.shape(x)), len(b.shape(y))) > 1 else "axis: 0"
    if axis == "axis: 0":
        x = y = b.input(b.normal(2, 5), free=True)
    loc = b.add("InnerProduct", [x], f"inner_product_param {{ num_output: {4 * count} }}")[0]
    conf = b.add("InnerProduct", [y], f"inner_product_param {{ num_output: {classes * count} }}")[0]
    return loc, conf, priors(b, count), classes, b.shape(x)[0]


def multi_box(b: Builder) -> None:
    loc, conf, prior, classes, images = scores(b)
    true = b.whole(1, 3)
    number = b.random.integers(0, images, (true, 1)).astype(float)
    kinds = b.random.integers(1, classes, (true, 1)).astype(float)
    zeros = np.zeros((true, 1))
    rows = np.hstack([number, kinds, zeros, boxes(b, true), zeros])
    truth = b.input(rows[np.argsort(number[:, 0])][None, None], "truth")
    words = (
        f"num_classes: {classes} loc_loss_type: {b.one(['L2', 'SMOOTH_L1'])} conf_loss_type: {b.one(['SOFTMAX', 'LOGISTIC'])}"
        f" code_type: {b.one(['CORNER', 'CENTER_SIZE', 'CORNER_SIZE'])} mining_type: {b.one(['NONE', 'MAX_NEGATIVE'])}"
        f" match_type: {b.one(['BIPARTITE', 'PER_PREDICTION'])} loc_weight: {b.number(0.3, 2)}"
    )
    body = f"multibox_loss_param {{ {words} }} loss_weight: {b.number(0.2, 2)}"
    b.add("MultiBoxLoss", [loc, conf, prior, truth], body, dead=[0])
    b.losses += 1


def detection_output(b: Builder) -> None:
    loc, conf, prior, classes, _ = scores(b)
    conf = b.add("Sigmoid", [conf])[0]
    words = f"num_classes: {classes} nms_param {{ nms_threshold: {b.number(0.2, 0.7)} }} confidence_threshold: 0.1"
    code = f"code_type: {b.one(['CORNER', 'CENTER_SIZE', 'CORNER_SIZE'])}"
    b.add("DetectionOutput", [loc, conf, prior], f"detection_output_param {{ {words} {code} }}", dead=[0])


DETECTION: list[Callable[[Builder], None]] = [box_annotator, multi_box, detection_output]
