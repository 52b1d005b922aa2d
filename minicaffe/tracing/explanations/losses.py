"""SoftmaxWithLoss, SmoothL1Loss and EuclideanLoss explained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.layer import Layer
from minicaffe.layers.loss.euclidean_loss import EuclideanLoss
from minicaffe.layers.loss.loss import read_labels
from minicaffe.layers.loss.smooth_l1_loss import SmoothL1Loss, smooth_l1, smooth_l1_backward
from minicaffe.layers.loss.softmax import softmax as probabilities
from minicaffe.layers.loss.softmax_with_loss import FLT_MIN, SoftmaxWithLoss
from minicaffe.layers.proposal.ohem import SmoothL1LossOHEM, SoftmaxWithLossOHEM
from minicaffe.registry import explains, explains_gradient

from .explanation import SHARE, Case, Explanation, SumExplanation, dy_term
from .normalisations import softmax
from .terms import Index, Terms, flat_index, indices, number, signed


@explains(SoftmaxWithLoss, SoftmaxWithLossOHEM)
def softmax_with_loss(case: Case[SoftmaxWithLoss], at: Index) -> Explanation:
    if case.number == 1:
        return softmax(case, at)
    p, labels, kept = _true(case)
    losses = np.where(kept, -np.log(np.maximum(p, FLT_MIN)), 0.0)  # FLT_MIN, as in Caffe: a loss of 87.3, not inf
    weights = case.layer.class_weights
    losses = losses if weights is None else losses * weights[labels]
    weighted = "" if weights is None else "w "
    if case.number == 2:
        i = np.unravel_index(flat_index(at, case.tops[2].shape), p.shape)
        step = f"label {labels[i]}, p of it {number(p[i])}" if kept[i] else "the label is ignored: 0"
        loss = float(losses[i])
        return case.function(at, f"loss = -{weighted}ln(p of the true class), not divided", loss, SHARE * (1 + abs(loss)), step)
    index = indices(np.arange(labels.size), case.bottoms[1].shape)
    columns = {"label": case.bottoms[1].reshape(-1), "p of it": np.where(kept, p, np.nan).reshape(-1)}  # NaN: ignored
    if weights is not None:
        columns["w"] = weights[labels].reshape(-1)
    terms = Terms.of(case.bottom_names[1], index, columns, losses.reshape(-1), f"-{weighted}ln p")
    divisor = float(case.layer.divisor_for(kept))
    more: dict[str, Any] = {"divisor": divisor}
    if not kept.all():
        more["steps"] = (f"{int((~kept).sum())} positions have the ignored label {case.layer.ignore}: 0",)
    found = case.sum(at, f"loss = the sum over positions of -{weighted}ln(p of the true class) / divisor", terms, **more)
    return _looser(found, int(kept.sum()))  # near p = 1, ln p has the absolute error of p


def _true(case: Case[SoftmaxWithLoss]) -> tuple[Array, Array, Array]:
    """Return the true class's probability, the labels, and a mask of the labels that count, each (outer, inner)."""
    layer = case.layer
    x = case.x.reshape(layer.split)
    prob = probabilities((x - x.max(axis=1, keepdims=True)).astype(np.float64))  # the difference rounded as in the layer
    labels, kept = read_labels(layer, case.bottoms[1], layer.split, layer.ignore)
    return np.take_along_axis(prob, labels[:, None], axis=1)[:, 0], labels, kept


@explains_gradient(SoftmaxWithLoss, SoftmaxWithLossOHEM)
def softmax_with_loss_gradient(case: Case[SoftmaxWithLoss], at: Index) -> Explanation:
    layer = case.layer
    outer, c, inner = np.unravel_index(flat_index(at, case.x.shape), layer.split)
    line = case.x.reshape(layer.split)[outer, :, inner]
    labels, kept = read_labels(layer, case.bottoms[1], layer.split, layer.ignore)
    p = float(probabilities((line - line.max()).astype(np.float64), 0)[c])
    true, counts = bool(labels[outer, inner] == c), bool(kept[outer, inner])
    divisor = float(layer.divisor_for(kept))
    weight = 1.0 if layer.class_weights is None else float(layer.class_weights[labels[outer, inner]])
    factor = weight * (p - true) * counts / divisor
    weighted = "" if layer.class_weights is None else f"{number(weight)} * "
    steps = (
        f"p of class {c} is {number(p)}; the label is {int(labels[outer, inner]) if counts else 'ignored'}",
        f"{weighted}({number(p)} - {int(true)}) / {number(divisor)} = {number(factor)}" if counts else "an ignored position: 0",
    )
    size = abs(float(case.dy[0])) * weight * (p + true) / divisor  # p - 1 cancels where p is near 1
    formula = f"dx = dloss * {'w * ' * bool(weighted)}(p - (1 for the true class)) / divisor"
    return case.gradient(at, formula, dy_term(case, (), factor), steps=steps, size=size)


@explains(SmoothL1Loss)
def smooth_l1_loss(case: Case[SmoothL1Loss], at: Index) -> Explanation:
    x, target, *weights = [b.reshape(-1).astype(np.float64) for b in case.bottoms]
    sigma = case.layer.sigma
    d = (x - target) * (weights[0] if weights else 1)
    losses = smooth_l1(d, sigma) * (weights[1] if len(weights) > 1 else 1)
    columns = {"x": x, "target": target, **dict(zip(("w_in", "w_out"), weights))}
    index = indices(np.arange(x.size), case.x.shape)
    terms = Terms.of(case.bottom_names[0], index, {**columns, "d": d}, losses, "w_out * f(d)" if len(weights) > 1 else "f(d)")
    formula = (
        f"loss = the sum of f(d) / N; d = w_in * (x - target)\n"
        f"f(d) = 0.5 ({number(sigma)} d)^2 where |d| < {number(1 / sigma**2)}, else |d| - {number(0.5 / sigma**2)}"
    )
    found = case.sum(at, formula, terms, divisor=float(_images(case)))
    return found if not x.size else _looser(found, np.abs(x).sum() + np.abs(target).sum())


def _looser(found: SumExplanation, size: float) -> Explanation:
    """Return the explanation with a larger tolerance, for terms that are differences (x - target, p near 1).

    size: the sum of their absolute values.
    """
    return replace(found, tolerance=found.tolerance + 1e-7 * float(size) / abs(found.divisor))


@explains_gradient(SmoothL1Loss)
def smooth_l1_loss_gradient(case: Case[SmoothL1Loss], at: Index) -> Explanation:
    i, sign = flat_index(at, case.bottoms[case.number].shape), 1 - 2 * case.number
    x, target, *weights = [float(b.reshape(-1)[i]) for b in case.bottoms]
    w_in, w_out = [*weights, 1.0, 1.0][:2]
    d = w_in * (x - target)
    slope = float(smooth_l1_backward(np.array(d), case.layer.sigma))
    factor = sign * slope * w_in * w_out / _images(case)
    steps = (
        f"d = {number(w_in)} * ({number(x)} - {number(target)}) = {number(d)}, f'(d) = {number(slope)}",
        f"{'-' * case.number}{number(slope)} * {number(w_in)} * {number(w_out)} / {_images(case)} = {number(factor)}",
    )
    # d has the rounding error of x - target, and f'(d) changes by sigma^2 per d.
    size = abs(float(case.dy[0]) * w_in * w_out) * (abs(slope) + case.layer.sigma**2 * abs(w_in) * (abs(x) + abs(target)))
    formula = "dx = dloss * w_in * w_out * f'(d) / N = -dtarget"
    return case.gradient(at, formula, dy_term(case, (), factor), steps=steps, size=size / _images(case))


@explains(SmoothL1LossOHEM)
def smooth_l1_loss_ohem(case: Case[SmoothL1LossOHEM], at: Index) -> Explanation:
    x, target, *weights = [b.reshape(-1).astype(np.float64) for b in case.bottoms]
    own = np.arange(x.size)
    divisor, formula = _rois_divisor(case), "loss = the sum of f(d) / divisor"
    if case.number:
        shape = (*_rois_shape(case.x),)
        own = np.arange(x.size).reshape(shape)[at[0], :, at[2], at[3]]
        divisor, formula = 1.0, "the roi's loss = the sum of f(d) over its channels, not divided"
    columns = {"x": x[own], "target": target[own], **({"w": weights[0][own]} if weights else {})}
    d = (x - target)[own] * (columns["w"] if weights else 1)
    terms = Terms.of(case.bottom_names[0], indices(own, case.x.shape), {**columns, "d": d}, smooth_l1(d), "f(d)")
    formula += f"; d = {'w * ' * bool(weights)}(x - target)\nf(d) = 0.5 d^2 where |d| < 1, else |d| - 0.5"
    found = case.sum(at, formula, terms, divisor=divisor)
    return _looser(found, float((np.abs(x[own]) + np.abs(target[own])) @ np.abs(columns.get("w", np.ones(len(own))))))


@explains_gradient(SmoothL1LossOHEM)
def smooth_l1_loss_ohem_gradient(case: Case[SmoothL1LossOHEM], at: Index) -> Explanation:
    i, sign = flat_index(at, case.bottoms[case.number].shape), 1 - 2 * case.number
    x, target, *weights = [float(b.reshape(-1)[i]) for b in case.bottoms]
    w, divisor = [*weights, 1.0][0], _rois_divisor(case)
    d = w * (x - target)
    slope = float(smooth_l1_backward(np.array(d)))
    factor = sign * slope * w / divisor
    steps = (
        f"d = {number(w)} * ({number(x)} - {signed(target)}) = {number(d)}, f'(d) = {number(slope)}",
        f"{'-' * case.number}{signed(slope)} * {signed(w)} / {number(divisor)} = {number(factor)}",
    )
    size = abs(float(case.dy[0]) * w) * (abs(slope) + abs(w) * (abs(x) + abs(target))) / divisor
    formula = "dx = dloss * w * f'(d) / divisor = -dtarget"
    return case.gradient(at, formula, dy_term(case, (), factor), steps=steps, size=size)


def _rois_shape(x: Array) -> Index:
    """Return the shape (R, 8) as (R, 8, 1, 1)."""
    return (*x.shape, 1, 1, 1, 1)[:4]


def _rois_divisor(case: Case[SmoothL1LossOHEM]) -> float:
    rois, _, height, width = _rois_shape(case.x)
    positions = rois * height * width
    return case.layer.normalization.divisor(images=rois, positions=positions, valid=positions)


def _images(case: Case[Layer]) -> int:
    """Return N, the divisor of these losses, at least 1."""
    return max(1, case.x.shape[0] if case.x.ndim else 1)


@explains(EuclideanLoss)
def euclidean_loss(case: Case[Layer], at: Index) -> Explanation:
    x, target = (b.reshape(-1).astype(np.float64) for b in case.bottoms)
    index = indices(np.arange(x.size), case.x.shape)
    columns = {"x": x, "target": target}
    terms = Terms.of(case.bottom_names[0], index, columns, np.square(x - target), "(x - target)^2")
    found = case.sum(at, "loss = the sum of (x - target)^2 / (2 N)", terms, divisor=2.0 * _images(case))
    return _looser(found, 2 * (np.abs(x - target) * (np.abs(x) + np.abs(target))).sum())


@explains_gradient(EuclideanLoss)
def euclidean_loss_gradient(case: Case[Layer], at: Index) -> Explanation:
    i, sign = flat_index(at, case.bottoms[case.number].shape), 1 - 2 * case.number
    x, target = (float(b.reshape(-1)[i]) for b in case.bottoms)
    factor = sign * (x - target) / _images(case)
    steps = (f"{'-' * case.number}({number(x)} - {number(target)}) / {_images(case)} = {number(factor)}",)
    size = abs(float(case.dy[0])) * (abs(x) + abs(target)) / _images(case)
    formula = "dx = dloss * (x - target) / N = -dtarget"
    return case.gradient(at, formula, dy_term(case, (), factor), steps=steps, size=size)
