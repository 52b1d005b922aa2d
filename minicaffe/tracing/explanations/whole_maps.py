"""MVN and Normalize explained: numbers divided by the deviation, or the length, of the numbers around them."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.layers.elementwise.channels import by_channel
from minicaffe.layers.norm.mvn import MVN
from minicaffe.layers.norm.normalize import LEAST, Normalize
from minicaffe.registry import explains, explains_gradient

from .case import Case, sent
from .explanation import SHARE, Explanation
from .terms import Index, Terms, indices
from .text import number, place, signed


def _group(case: Case[MVN], flat: int) -> Array:
    """The flat indices of the numbers that are normalised together with number flat."""
    shape, axes = case.y.shape, case.layer.axes
    at = np.unravel_index(flat, shape)
    own: Array = np.arange(case.y.size).reshape(shape)[at[: axes[0]]].reshape(-1)
    return own


def _moments(case: Case[MVN], own: Array) -> tuple[Array, float, float, str]:
    """x (T,) of the group in float64, its mean, what it is divided by, and the step."""
    x, param = case.x.reshape(-1)[own].astype(np.float64), case.layer.param.mvn_param
    mean, scale = float(x.mean()), 1.0
    what = "image" if param.across_channels else "map"
    text = f"the mean of the {len(x)} numbers of the {what} is {number(mean)}"
    if param.normalize_variance:
        variance = float(x.var())
        scale = variance**0.5 + param.eps
        text += f", their variance {number(variance)}; sqrt({number(variance)}) + {number(param.eps)} = {number(scale)}"
    return x, mean, scale, text


@explains(MVN)
def mvn(case: Case[MVN], at: Index) -> Explanation:
    flat = int(np.ravel_multi_index(at, case.y.shape))
    own = _group(case, flat)
    values, mean, scale, text = _moments(case, own)
    x, divides = float(case.x.reshape(-1)[flat]), case.layer.param.mvn_param.normalize_variance
    computed = (x - mean) / scale
    divided = f" / {number(scale)}" if divides else ""
    steps = (text, f"y = ({number(x)} - {signed(mean)}){divided} = {number(computed)}")
    formula = "y = (x - mean) / (sqrt(variance) + eps)" if divides else "y = x - mean"
    size = abs(x) + np.abs(values).mean()  # the absolute terms, the mean's among them
    return case.function(at, formula, computed, SHARE * float(size) / scale, *steps)


@explains_gradient(MVN)
def mvn_gradient(case: Case[MVN], at: Index) -> Explanation:
    flat = int(np.ravel_multi_index(at, case.x.shape)) if at else 0
    own = _group(case, flat)
    x, mean, scale, text = _moments(case, own)
    divides, here, m = case.layer.param.mvn_param.normalize_variance, own == flat, len(own)
    y = (x - mean) / scale if divides else np.zeros(m)
    y_here = float(y[here][0])
    dy = case.dy[0].reshape(-1)[own].astype(np.float64)
    terms = sent(case, indices(own, case.y.shape), dy, (here - 1 / m - y * y_here / m) / scale)
    along = f" - y y_here / {m}) / {number(scale)}" if divides else ")"
    formula = f"dx = the sum over the {m} numbers of dy * ((1 where here) - 1 / {m}{along}"
    steps = (text, f"y_here = {number(y_here)}") if divides else (text,)
    size = abs(float(dy[here][0])) + np.abs(dy).mean() + np.abs(dy * y).mean() * abs(y_here)
    # y is off by the rounding of x - mean
    size += (np.abs(dy).mean() * abs(y_here) + np.abs(dy * y).mean()) * (np.abs(x).max() + abs(mean)) / scale * divides
    return case.gradient(at, formula, terms, steps=steps, size=float(size) / scale)


def _length(case: Case[Normalize], flat: int) -> tuple[Array, float, Terms, str]:
    """Of number flat: the flat indices of those that count in its length n, n, the terms of n, and its step."""
    layer, every = case.layer, by_channel(np.arange(case.x.size).reshape(case.x.shape))
    n, _, position = np.unravel_index(flat, every.shape)
    whole = not layer.by_type and layer.param.norm_param.across_spatial
    own = every[n].reshape(-1) if whole else every[n, :, position]
    x = case.x.reshape(-1)[own].astype(np.float64)
    by_size = layer.by_type and layer.param.normalize_param.normalize_type == "L1"
    eps = LEAST if layer.by_type else float(layer.param.norm_param.eps)
    product, title = (np.abs(x), "|x|") if by_size else (np.square(x), "x^2")
    terms = Terms.of(case.bottom_names[0], indices(own, case.x.shape), {"x": x}, product, title)
    total = terms.total() + eps
    length = total if by_size else total**0.5
    root = "" if by_size else f", its root {number(length)}"
    return own, length, terms, f"n: the sum of {title} and eps {number(eps)} is {number(total)}{root}"


def _scales(case: Case[Normalize], flat: Array) -> Array:
    """The scale (T,) of the numbers flat (T,)."""
    if not case.layer.blobs:
        return np.ones(len(flat))
    _, channel, _ = np.unravel_index(flat, by_channel(case.x).shape)
    scale = case.layer.blobs[0].read_data().reshape(-1).astype(np.float64)
    found: Array = scale[channel if scale.size > 1 else np.zeros(len(flat), int)]
    return found


@explains(Normalize)
def normalize(case: Case[Normalize], at: Index) -> Explanation:
    if case.number:  # n (N, 1, ...)
        shape = by_channel(case.x).shape
        image, position = np.unravel_index(int(np.ravel_multi_index(at, case.tops[1].shape)), (shape[0], shape[2]))
        flat = int(np.ravel_multi_index((image, 0, position), shape))
        _, length, terms, step = _length(case, flat)
        return case.function(at, "n, by which x is divided", length, SHARE * length, step, terms=terms)
    flat = int(np.ravel_multi_index(at, case.y.shape))
    _, length, terms, step = _length(case, flat)
    x, scale = float(case.x.reshape(-1)[flat]), float(_scales(case, np.array([flat]))[0])
    computed, scaled = scale * x / length, bool(case.layer.blobs)
    times = f"{number(scale)} * " * scaled
    steps = (step, f"y = {times}{signed(x) if scaled else number(x)} / {number(length)} = {number(computed)}")
    formula = f"y = {'scale * ' * scaled}x / n, n = the length of the numbers that x is normalised with"
    return case.function(at, formula, computed, SHARE * abs(computed), *steps, terms=terms)


@explains_gradient(Normalize)
def normalize_gradient(case: Case[Normalize], at: Index) -> Explanation:
    flat = int(np.ravel_multi_index(at, case.x.shape))
    own, length, _, step = _length(case, flat)
    layer, x, here = case.layer, case.x.reshape(-1)[own].astype(np.float64), own == flat
    x_here, scales = float(x[here][0]), _scales(case, own)
    by_size = layer.by_type and layer.param.normalize_param.normalize_type == "L1"
    slope = float(np.sign(x_here)) if by_size else x_here / length  # dn / dx here
    dy = case.dy[0].reshape(-1)[own].astype(np.float64)
    terms = sent(case, indices(own, case.y.shape), dy, scales * (here / length - x * slope / length**2), "dy/dx")
    size = float(np.abs(dy * scales) @ (here / length + np.abs(x * slope) / length**2))
    if layer.by_type and layer.param.normalize_param.bp_norm and len(case.tops) > 1:
        place_of = np.unravel_index(flat, by_channel(case.x).shape)
        index = int(np.ravel_multi_index((place_of[0], place_of[2]), (len(case.x), by_channel(case.x).shape[2])))
        dn = case.dy[1].reshape(-1)[index : index + 1]
        terms = Terms.joined(
            [terms, sent(case, indices(np.array([index]), case.tops[1].shape), dn, np.array([slope]), "dy/dx", 1)]
        )
        size += abs(float(dn[0]) * slope)
    steps = (step, f"dn/dx at {place(case.bottom_names[0], at)} is {number(slope)}")
    times = "scale * " * bool(layer.blobs)
    formula = f"dx = the sum over the numbers of n of dy * {times}((1 where here) / n - x dn/dx / n^2)"
    return case.gradient(at, formula, terms, steps=steps, size=size)
