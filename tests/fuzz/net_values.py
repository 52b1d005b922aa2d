"""A random net made and run: its values, its gradients, and how far two arrays lie apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import numpy as np
from net_builder import Array, RandomNet

from minicaffe import Net, rng
from minicaffe.formats.prototxt import parse_net
from minicaffe.layer import Layer

Arrays = dict[str, Array]

SINGLE = 1e-4
"""How far float32 may be from float64, of the greater of a value and its blob's root mean square."""
DOUBLE = 1e-9
"""How far two ways in float64 may be from each other, likewise."""
LEAST = 1e-3
"""Smaller values than this count as this: at the least, SINGLE allows 1e-7, a step of float32 in the numbers of about 1 that
they are the difference of."""
ULP = 2.0**-23
"""One step of float32, near 1."""


class FoundError(Exception):
    """What a check found."""


class Doubles:
    """NumPy's generator, but that a float32 net draws the numbers of a float64 one, rounded."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def random(self, size: Any = None, dtype: Any = np.float64, out: Array | None = None) -> Array:
        return self._drawn(self._generator.random, size, dtype, out)

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Array | None = None) -> Array:
        return self._drawn(self._generator.standard_normal, size, dtype, out)

    def _drawn(self, draw: Any, size: Any, dtype: Any, out: Array | None) -> Array:
        if out is None:
            drawn: Array = draw(size).astype(dtype)
            return drawn
        out[...] = draw(out.shape)
        return out


def seed(number: int) -> None:
    """Let everything random begin anew."""
    rng._generator = Doubles(number)  # type: ignore[assignment]


def make(random: RandomNet, dtype: Any, keep: Literal["all", "outputs"] = "all") -> Net:
    """The net, its weights random and not 0, float32 numbers in either dtype, its inputs filled."""
    seed(1)
    net = Net(parse_net(random.text), random.phase, dtype=dtype, keep=keep)
    draws = np.random.default_rng(2)
    for layer in net.layers:
        for blob in layer.blobs:
            fan_in = blob.count // blob.shape[0] if len(blob.shape) > 1 and blob.count else 1
            values = draws.uniform(0.3, 1.2, blob.shape) * draws.choice([-1, 1], blob.shape) / np.sqrt(fan_in)
            blob.data[...] = values.astype(np.float32)
        if layer.type == "BatchNorm":
            layer.blobs[1].data[...] = np.abs(layer.blobs[1].data)
            layer.blobs[2].data[...] = 1.5
    for name in net.inputs:
        net.blobs[name].data[...] = random.inputs[name]
    return net


def forward(net: Net) -> Arrays:
    """A forward pass, random numbers anew; every blob."""
    seed(3)
    net.forward()
    return {name: blob.data.copy() for name, blob in net.blobs.items()}


def forward_backward(net: Net, random: RandomNet) -> Arrays:
    """Both passes; every blob, and every gradient."""
    found = forward(net)
    net.clear_param_diffs()
    draws = np.random.default_rng(4)
    for name in ends(net, random):
        blob = net.blobs[name]
        blob.diff[...] = draws.uniform(0.5, 1.5, blob.shape)
    net.backward()
    found |= {f"gradient of {name}": net.blobs[name].diff.copy() for name in net.inputs}
    for layer in net.layers:
        found |= {f"gradient of {layer.name}'s blob {i}": layer.blobs[i].diff.copy() for i in learnt(layer)}
    return found


def ends(net: Net, random: RandomNet) -> list[str]:
    """The outputs whose diffs are given, beside the losses."""
    return [name for name in random.ends if random.forced and name in net.outputs]


def learnt(layer: Layer) -> list[int]:
    """Which of a layer's blobs get a gradient: not BatchNorm's statistics, though a net that forces backward asks for it."""
    if layer.type == "BatchNorm":
        return []
    return [i for i in range(len(layer.blobs)) if layer.param_propagate_down[i]]


def far(one: Array, other: Array) -> float:
    """The greatest distance of two arrays' elements, of the greatest of other's element, other's root mean square and LEAST;
    infinite where their shapes differ: a detection more or less."""
    if one.shape != other.shape:
        return np.inf
    if not other.size:
        return 0.0
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return 0.0 if np.array_equal(one, other, equal_nan=True) else np.inf
    wide = other.astype(np.float64)
    scale = np.maximum(np.abs(wide), max(LEAST, np.sqrt(np.mean(wide**2))))
    difference = np.abs(one - wide)
    return float(np.divide(difference, scale, where=difference > 0, out=np.zeros_like(wide)).max())


class Nudge:
    """A step of float32, up or down, in whatever is no whole number by its nature: labels, indices and the like stay."""

    def __init__(self, draw: int) -> None:
        self._draws = np.random.default_rng(draw)
        self._sign = 1 - draw % 2 * 2

    def values(self, values: Array) -> Array:
        return values * (1 + ULP * self._draws.choice([-1, 1], values.shape))

    def rois(self, values: Array) -> Array:
        moved = self.values(values)
        moved[:, 0] = values[:, 0]
        return moved

    @contextmanager
    def scale(self, layer: Layer) -> Iterator[None]:
        """Inside, a ROI layer's spatial_scale is another: a roi on a rounding edge goes over it, to one side or the other."""
        kept = getattr(layer, "spatial_scale", None)
        if kept:
            layer.spatial_scale = kept * (1 + self._sign * ULP)  # type: ignore[attr-defined]
        yield
        if kept:
            layer.spatial_scale = kept  # type: ignore[attr-defined]


def allowed(random: RandomNet) -> dict[str, float]:
    """How far each value of the net may be apart in two ways in float32: 100 times what a step of float32 in the inputs and
    weights moves it by, in float64 or in float32 (the most of 3 tries), or 4 times what it is from float64's value."""
    moved: dict[str, float] = {}
    exact: Arrays = {}
    for dtype in (np.float64, np.float32):
        net = make(random, dtype)
        start = forward_backward(net, random)
        exact = exact or start
        weights = {id(b): b.data.copy() for layer in net.layers for b in layer.blobs}
        for draw in range(3):
            for name, values in _nudged(net, random, weights, Nudge(draw)).items():
                moved[name] = max(moved.get(name, 0.0), far(values, start[name]))
    return {name: max(100 * moved[name], 4 * far(values, exact[name])) for name, values in start.items()}


def _nudged(net: Net, random: RandomNet, weights: dict[int, Array], nudge: Nudge) -> Arrays:
    for name in net.inputs:
        given = random.inputs[name].astype(np.float64)
        if name in random.seen or name.startswith("scale"):
            net.blobs[name].data[...] = nudge.values(given)
        elif name.startswith("rois"):
            net.blobs[name].data[...] = nudge.rois(given)
    with ExitStack() as stack:
        for layer in net.layers:
            stack.enter_context(nudge.scale(layer))
            for blob in layer.blobs:
                blob.data[...] = nudge.values(weights[id(blob)])
        return forward_backward(net, random)


def agree(what: str, one: Arrays, other: Arrays, tolerance: float, random: RandomNet | None = None) -> int:
    """Raise FoundError where one is further from other than tolerance; with random, only where it is also further than what
    is allowed there. Returns how many values were left out because of that."""
    apart = {name: far(values, other[name]) for name, values in one.items()}
    wrong = [name for name, distance in apart.items() if not distance <= tolerance]
    if not wrong:
        return 0
    most = allowed(random) if random else {}
    steady = [name for name in wrong if not apart[name] <= most.get(name, 0.0)]
    if steady:
        raise FoundError(f"{what}: {', '.join(f'{name} {apart[name]:.3g}' for name in steady)} apart")
    return len(wrong)
