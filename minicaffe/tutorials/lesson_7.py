"""Questions of lesson 7: losses, and what anchors and rois are asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.settings import TrainSettings
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.proposal.anchor_target import anchor_labels
from minicaffe.mode import TRAIN
from minicaffe.net import Net

from .checks import question

Array = NDArray[np.floating[Any]]

OBJECT, BACKGROUND = 0.6, 0.3
"""The IoUs of examples/shapes: from OBJECT on an anchor is an object, below BACKGROUND it is background."""


def loss_layer(kind: str, shapes: dict[str, Sequence[int]], fields: str = "") -> Net:
    """Return a net of one loss layer.

    Parameters
    ----------
    kind : the layer's type
    shapes : of its bottoms, by name
    fields : further fields of the layer, as in a prototxt

    Returns
    -------
    Net
        Its top is `loss`, with the loss weight 1.
    """
    inputs = "".join(
        f'input: "{name}" input_shape {{ {" ".join(f"dim: {side}" for side in shape)} }} ' for name, shape in shapes.items()
    )
    bottoms = " ".join(f'bottom: "{name}"' for name in shapes)
    layer = f'layer {{ name: "loss" type: "{kind}" {bottoms} top: "loss" loss_weight: 1 {fields} }}'
    return Net(parse_net(f"force_backward: true {inputs} {layer}"), TRAIN)


def _scores(rng: np.random.Generator) -> list[tuple[Array, NDArray[np.integer[Any]]]]:
    cases: list[tuple[Array, NDArray[np.integer[Any]]]] = []
    for count, classes in ((3, 4), (5, 3), (4, 7)):
        labels = rng.integers(0, classes, count)
        labels[rng.integers(count)] = -1
        cases.append((rng.normal(0, 3, (count, classes)), labels))
    return cases


@question(_scores)
def softmax_loss(scores: Array, labels: NDArray[np.integer[Any]]) -> float:
    """Return the mean softmax loss over the examples whose label is not -1."""
    fields = "loss_param { ignore_label: -1 normalize: true }"
    net = loss_layer("SoftmaxWithLoss", {"score": scores.shape, "label": labels.shape}, fields)
    return float(net.forward(score=scores, label=labels)["loss"])


def _costs(scores: Array, labels: NDArray[np.integer[Any]]) -> Array:
    shifted = scores - scores.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    costs: Array = -logs[np.arange(len(labels)), labels] * (labels >= 0)
    return costs


@softmax_loss.slip("Examples with the label -1 count nowhere: neither in the sum nor in the number that divides it.")
def ignored_count(scores: Array, labels: NDArray[np.integer[Any]]) -> float:
    return float(_costs(scores, labels).mean())


@softmax_loss.slip("The loss is the mean over the examples that count, not the sum: divide by their number.")
def summed(scores: Array, labels: NDArray[np.integer[Any]]) -> float:
    return float(_costs(scores, labels).sum())


@softmax_loss.slip("The label -1 took the last class as if it were the true one. Leave such examples out.")
def last_class(scores: Array, labels: NDArray[np.integer[Any]]) -> float:
    return float(_costs(scores, labels % scores.shape[1]).mean())


def _errors(rng: np.random.Generator) -> list[tuple[float, float]]:
    given: list[tuple[float, float]] = [(0.05, 1.0), (-0.3, 1.0), (2.5, 1.0), (0.2, 3.0), (-0.05, 3.0), (1.8, 0.7), (2.4, 0.7)]
    return [*given, *((float(error), float(sigma)) for error, sigma in zip(rng.normal(0, 2, 4), rng.uniform(0.5, 3, 4)))]


@question(_errors)
def smooth_l1(error: float, sigma: float) -> float:
    """Return the smooth L1 loss of one error."""
    net = loss_layer("SmoothL1Loss", {"p": (1, 1), "t": (1, 1)}, f"smooth_l1_loss_param {{ sigma: {sigma} }}")
    return float(net.forward(p=[[error]], t=[[0]])["loss"])


@smooth_l1.slip("The two parts meet at 1 / sigma^2, not at 1 / sigma.")
def meets_at_sigma(error: float, sigma: float) -> float:
    return (sigma * error) ** 2 / 2 if abs(error) < 1 / sigma else abs(error) - 0.5 / sigma**2


@smooth_l1.slip("The straight part is |error| - 0.5 / sigma^2, so that it meets the parabola.")
def does_not_meet(error: float, sigma: float) -> float:
    return (sigma * error) ** 2 / 2 if abs(error) < 1 / sigma**2 else abs(error) - 0.5


@smooth_l1.slip("An error can be negative: compare |error| with 1 / sigma^2.")
def negative(error: float, sigma: float) -> float:
    return (sigma * error) ** 2 / 2 if error < 1 / sigma**2 else error - 0.5 / sigma**2


@smooth_l1.slip("sigma counts: the parabola is (sigma * error)^2 / 2.")
def without_sigma(error: float, sigma: float) -> float:
    return error**2 / 2 if abs(error) < 1 else abs(error) - 0.5


def _overlaps(rng: np.random.Generator) -> list[tuple[Array]]:
    """Return overlaps of anchors with true boxes: one box that no anchor overlaps by OBJECT, and two equally good anchors."""
    cases: list[tuple[Array]] = []
    for anchors, boxes in ((12, 3), (30, 5)):
        overlaps = rng.uniform(0, 0.75, (anchors, boxes))
        overlaps[: anchors // 3] *= 0.3
        overlaps[:, 1] *= 0.25 / overlaps[:, 1].max()
        overlaps[:2, 1] = 0.28
        overlaps[:2, 0] = 0.1
        overlaps[2] = [0.45, *[0.1] * (boxes - 1)]
        overlaps[3, 0] = OBJECT
        cases.append((overlaps,))
    return cases


@question(_overlaps)
def label_anchors(overlaps: Array) -> Array:
    """Return the labels (N,) of anchors before any are drawn: 1, 0 or -1. overlaps: IoU (N, K) with the true boxes."""
    return anchor_labels(overlaps, TrainSettings(rpn_positive_overlap=OBJECT, rpn_negative_overlap=BACKGROUND))


def _labels(overlaps: Array, low: float = BACKGROUND, force: bool = True, all_best: bool = True) -> Array:
    labels = np.full(len(overlaps), -1.0)
    most = overlaps.max(axis=1)
    labels[most < low] = 0
    if force and all_best:
        labels[(overlaps == overlaps.max(axis=0)).any(axis=1)] = 1
    elif force:
        labels[overlaps.argmax(axis=0)] = 1
    labels[most >= OBJECT] = 1
    return labels


@label_anchors.slip(
    "Between the two thresholds an anchor is neither object nor background: its label is -1, and it is ignored."
)
def without_the_band(overlaps: Array) -> Array:
    return _labels(overlaps, low=OBJECT)


@label_anchors.slip("A true box that no anchor fits well would teach nothing: its best anchors are objects in any case.")
def without_the_best(overlaps: Array) -> Array:
    return _labels(overlaps, force=False)


@label_anchors.slip(
    "Where several anchors are equally good for a true box, all of them are objects; argmax finds the first alone."
)
def first_best(overlaps: Array) -> Array:
    return _labels(overlaps, all_best=False)


@label_anchors.slip("An anchor with exactly the threshold's IoU is an object: compare with >=.")
def strictly_greater(overlaps: Array) -> Array:
    labels = _labels(overlaps)
    at = (overlaps.max(axis=1) == OBJECT) & ~(overlaps == overlaps.max(axis=0)).any(axis=1)
    labels[at] = -1
    return labels
