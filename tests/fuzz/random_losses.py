"""Random losses, on blobs that no layer reads yet."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from net_builder import Builder, NoPlaceError


def put_loss(b: Builder, x: str) -> None:
    """A loss on x, and its weight. Raises NoPlaceError where the one that was drawn does not suit x's shape."""
    b.one(LOSSES)(b, x)
    b.losses += 1


def weight(b: Builder, tops: int = 1) -> str:
    """loss_weight, left out now and then."""
    return f"loss_weight: {b.number(0.2, 2)}" + " loss_weight: 0" * (tops - 1)


def target(b: Builder, x: str, free: bool = False) -> str:
    return b.input(b.normal(*b.shape(x)), "target", free=free)


def normalizing(b: Builder, *more: str) -> str:
    mode = b.one(["FULL", "VALID", "BATCH_SIZE", "NONE", "PRE_FIXED"])
    fixed = f"pre_fixed_normalizer: {b.number(2, 9)}" if mode == "PRE_FIXED" else ""
    return f"loss_param {{ normalization: {mode} {fixed} {' '.join(more)} }}"


def euclidean(b: Builder, x: str) -> None:
    bottoms = [x, target(b, x, free=True)]
    b.add("EuclideanLoss", bottoms[:: b.one([1, -1])], weight(b), dead=[0])


def softmax(b: Builder, x: str) -> None:
    shape = b.shape(x)
    if len(shape) < 2:
        raise NoPlaceError
    kind = b.one(["SoftmaxWithLoss", "SoftmaxWithLossOHEM", "InfogainLoss"])
    axis = b.whole(1, len(shape) - 1)
    labels = b.random.integers(0, shape[axis], (*shape[:axis], *shape[axis + 1 :])).astype(float)
    bottoms = [x, b.input(labels, "labels")]
    body = f"softmax_param {{ axis: {axis} }}"
    if kind == "InfogainLoss":
        bottoms.append(b.input(abs(b.normal(1, 1, shape[axis], shape[axis])), "gain"))
        body = f"infogain_loss_param {{ axis: {axis} }}"
    tops = b.whole(1, 3 if kind == "SoftmaxWithLossOHEM" else 2)
    ignored = f"ignore_label: {b.whole(0, shape[axis])}" if b.chance(0.3) else ""
    words = f"{body} {normalizing(b, ignored)} {weight(b, tops)}"
    b.add(kind, bottoms, words, tops=tops, dead=range(tops))


def smooth_l1(b: Builder, x: str) -> None:
    shape = b.shape(x)
    if b.chance(0.5) or len(shape) not in (2, 4):
        outer = [b.input(abs(b.normal(*shape)), "outer") for _ in range(2)] if b.chance(0.5) else []
        bottoms = [x, target(b, x, free=True), *outer]
        b.add("SmoothL1Loss", bottoms, f"smooth_l1_loss_param {{ sigma: {b.number(0.5, 3)} }} {weight(b)}", dead=[0])
    else:
        inner = [b.input(abs(b.normal(*shape)), "inner")] if b.chance(0.5) else []
        tops = b.whole(1, 2)
        bottoms = [x, target(b, x, free=True), *inner]
        b.add("SmoothL1LossOHEM", bottoms, f"{normalizing(b)} {weight(b, tops)}", tops=tops, dead=range(tops))


def sigmoid(b: Builder, x: str) -> None:
    targets = b.input(b.random.random(b.shape(x)), "targets")
    b.add("SigmoidCrossEntropyLoss", [x, targets], f"{normalizing(b)} {weight(b)}", dead=[0])


def hinge(b: Builder, x: str) -> None:
    shape = b.shape(x)
    labels = b.input(b.random.integers(0, prod(shape[1:]), shape[0]).astype(float), "labels")
    b.add("HingeLoss", [x, labels], f"hinge_loss_param {{ norm: {b.one(['L1', 'L2'])} }} {weight(b)}", dead=[0])


def multinomial(b: Builder, x: str) -> None:
    shape = b.shape(x)
    flat = b.add("Flatten", [x])[0] if len(shape) > 2 else x
    if len(shape) < 2:
        raise NoPlaceError
    p = b.add("Softmax", [flat])[0]
    labels = b.input(b.random.integers(0, b.shape(p)[1], shape[0]).astype(float), "labels")
    b.add("MultinomialLogisticLoss", [p, labels], weight(b), dead=[0])


def contrastive(b: Builder, x: str) -> None:
    shape = b.shape(x)
    if len(shape) != 2:
        raise NoPlaceError
    legacy = b.chance(0.6)  # else pairs of one kind only: Caffe's gradient of the others divides by the distance + 1e-4
    alike = b.input(b.random.integers(1 - legacy, 2, shape[0]).astype(float), "alike")
    words = f"margin: {b.number(0.5, 4)} legacy_version: {str(legacy).lower()}"
    b.add("ContrastiveLoss", [x, target(b, x, True), alike], f"contrastive_loss_param {{ {words} }} {weight(b)}", dead=[0])


def reduction(b: Builder, x: str) -> None:
    b.add("Reduction", [x], f"reduction_param {{ operation: {b.one(['SUM', 'SUMSQ', 'MEAN'])} }} {weight(b)}", dead=[0])


def itself(b: Builder, x: str) -> None:
    """Any layer's top may count as a loss."""
    b.add("Power", [x], f"power_param {{ scale: {b.number(-1, 1)} }} {weight(b)}", dead=[0])


LOSSES: list[Callable[[Builder, str], None]] = [
    *(euclidean, softmax, softmax, softmax, smooth_l1, smooth_l1, sigmoid, hinge, multinomial, contrastive, reduction, itself),
]
