"""BatchNorm explained."""

from __future__ import annotations

import numpy as np

from minicaffe.layers.batch_norm import BatchNorm, global_statistics
from minicaffe.layers.elementwise.channels import channels_of
from minicaffe.registry import explains, explains_gradient

from .case import Array, Case, sent
from .explanation import SHARE, Explanation, FunctionExplanation
from .terms import Index, indices
from .text import number, place, signed


def _statistics(case: Case, at: Index) -> tuple[float, float, Array, str]:
    """Mean and variance that the channel of `at` is normalised with, the channel's values, and where they come from."""
    layer = case.layer
    channel = at[1] if len(at) > 1 else 0
    values = (case.x[:, channel] if case.x.ndim > 1 else case.x).astype(np.float64).reshape(-1)
    if layer.use_global_stats:
        sums = [blob.read_data().astype(np.float64) for blob in layer.blobs]
        mean, var = global_statistics(*sums)
        text = f"the sums kept, divided by the factor {number(sums[2][0])}"
        return float(mean[channel]), float(var[channel]), values, text
    return float(values.mean()), float(values.var()), values, f"of the {values.size} values of channel {channel} in this batch"


@explains(BatchNorm)
def batch_norm(case: Case, at: Index) -> Explanation:
    layer, x = case.layer, float(case.x[at])
    mean, var, _, source = _statistics(case, at)
    std = (var + layer.eps) ** 0.5
    computed = (x - mean) / std
    steps = (
        f"mean {number(mean)}, variance {number(var)}: {source}",
        f"std = sqrt({number(var)} + {number(layer.eps)}) = {number(std)}",
        f"y = ({number(x)} - {signed(mean)}) / {number(std)} = {number(computed)}",
    )
    named, tolerance = case.named(at), SHARE * (abs(x) + abs(mean)) / std
    return FunctionExplanation(
        formula="y = (x - mean) / sqrt(variance + eps)", computed=computed, tolerance=tolerance, steps=steps, **named
    )


@explains_gradient(BatchNorm)
def batch_norm_gradient(case: Case, at: Index) -> Explanation:
    layer = case.layer
    mean, var, values, source = _statistics(case, at)
    std = (var + layer.eps) ** 0.5
    steps: tuple[str, ...] = (f"mean {number(mean)}, std {number(std)}: {source}",)
    if layer.use_global_stats:
        terms = sent(case, np.array([at]), np.array([case.dy[0][at]]), np.array([1 / std]), "1 / std")
        return case.gradient(at, "dx = dy / std", terms, steps=steps)
    normalised = (values - mean) / std
    flat = np.arange(case.x.size).reshape(case.x.shape)
    channel = flat[:, at[1]].reshape(-1) if channels_of(case.x.shape) > 1 or case.x.ndim > 1 else flat.reshape(-1)
    here = channel == np.ravel_multi_index(at, case.x.shape)
    own = float(normalised[here][0])
    dy = case.dy[0].reshape(-1)[channel].astype(np.float64)
    terms = sent(case, indices(channel, case.x.shape), dy, _shares(here, normalised, own, std))
    mass = np.abs(dy).mean() + np.abs(dy * normalised).mean() * abs(own) + abs(float(dy[here][0]))
    m = len(dy)
    formula = f"dx = the sum over the {m} values of the channel of dy * ((1 where here) - 1 / {m} - y y_here / {m}) / std"
    steps = (*steps, f"y_here = {number(own)} at {place(case.bottom_names[0], at)}")
    return case.gradient(at, formula, terms, steps=steps, size=float(mass) / std)


def _shares(here: Array, normalised: Array, own: float, std: float) -> Array:
    """How much of each dy reaches the element `here`."""
    shares: Array = (here - 1 / len(here) - normalised * own / len(here)) / std
    return shares
