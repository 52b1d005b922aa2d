"""The losses that have a torch form, as functions made from the layer. Their value is the top's, without its loss_weight."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from minicaffe.layers.loss.euclidean_loss import EuclideanLoss
from minicaffe.layers.loss.sigmoid_cross_entropy_loss import SigmoidCrossEntropyLoss, balance
from minicaffe.layers.loss.smooth_l1_loss import SmoothL1Loss
from minicaffe.layers.loss.softmax_with_loss import FLT_MIN, SoftmaxWithLoss

from .our_layer import Step

MOST = -math.log(FLT_MIN)
"""The greatest loss of one position in SoftmaxWithLoss."""


def softmax_with_loss(layer: SoftmaxWithLoss, tops: int) -> Step:
    """Return a function that gives the loss, and with two tops the probabilities.

    A position's loss is at most MOST; this limit does not affect the gradient.
    """
    axis, ignore = layer.param.softmax_param.axis, layer.ignore
    weights = None if layer.class_weights is None else torch.from_numpy(layer.class_weights)

    def run(scores: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        log_prob = functional.log_softmax(scores, axis)
        classes = log_prob.movedim(axis, -1)
        label = labels.detach().reshape(classes.shape[:-1])
        kept = torch.ones_like(label, dtype=torch.bool) if ignore is None else label != ignore
        # Ignored labels may be no classes, so look up 0 for them.
        loss = -classes.gather(-1, torch.where(kept, label, 0).long()[..., None])[..., 0] * kept
        loss = loss - (loss - loss.clamp(max=MOST)).detach()  # as in Caffe, limits the value but not the gradient
        if weights is not None:
            loss = loss * weights.to(loss)[torch.where(kept, label, 0).long()]
        total = loss.sum() / _divisor(layer, kept, math.prod(scores.shape[: axis % scores.ndim]))
        return (total, log_prob.detach().exp())[:tops]

    return run


def sigmoid_cross_entropy_loss(layer: SigmoidCrossEntropyLoss) -> Step:
    def run(x: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        target = target.detach().reshape(x.shape)
        kept = torch.ones_like(target, dtype=torch.bool) if layer.ignore is None else target.trunc() != layer.ignore
        loss = functional.binary_cross_entropy_with_logits(x, target, reduction="none")
        if layer.zeros_weight:
            balanced = torch.from_numpy(balance(target.cpu().numpy(), layer.zeros_weight)).to(loss)
            return (loss * balanced).sum() / max(1, x.shape[0])
        if weights is not None:
            weights = weights.detach().reshape(x.shape) * kept
            return (loss * weights).sum() / (weights.sum() if weights.sum() > 0 else math.inf)
        return (loss * kept).sum() / _divisor(layer, kept, x.shape[0])

    return run


def _divisor(layer: SoftmaxWithLoss | SigmoidCrossEntropyLoss, kept: Tensor, images: int) -> float:
    return layer.normalization.divisor(images=images, positions=kept.numel(), valid=int(kept.sum()))


def smooth_l1_loss(layer: SmoothL1Loss) -> Step:
    square = layer.sigma**2

    def run(x: Tensor, target: Tensor, inside: Tensor | None = None, outside: Tensor | None = None) -> Tensor:
        d = x - target.reshape(x.shape)
        d = d if inside is None else d * inside.detach().reshape(x.shape)
        size = d.abs()
        near = size.clamp(max=1 / square)
        loss = square * near * (size - 0.5 * near)
        loss = loss if outside is None else loss * outside.detach().reshape(x.shape)
        return loss.sum() / max(1, x.shape[0])

    return run


def euclidean_loss(layer: EuclideanLoss) -> Step:
    return lambda x, target: (x - target.reshape(x.shape)).square().sum() / (2 * max(1, x.shape[0]))
