"""The differences between the outputs of two runs of one net, compared with the proposals of both in one order.

Two proposals whose scores differ in the last digits may come in either order, which reorders the rows of every output with a
row per roi. That is not a difference: rois are matched by position, those that changed places must have nearly equal scores,
and outputs that depend on them are compared in the matched order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.errors import Error
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.layers.recurrent.base import Stateful
from minicaffe.net import Net

from .graph import graph_of

TOLERANCE = 1e-4
"""The largest relative difference that counts as agreement."""


@dataclass(frozen=True)
class Difference:
    """The difference between an output of one run (of this shape) and of the other (of other_shape).

    largest: the largest absolute difference; relative: the same over the first's largest magnitude. Both are infinite if the
    shapes differ. note: how many rois have another order, or no counterpart. constant: whether the first's numbers are all the
    same, or none, so that agreement would say nothing. gradient: whether they are a gradient.
    """

    name: str
    shape: tuple[int, ...]
    other_shape: tuple[int, ...]
    largest: float
    relative: float
    note: str = ""
    constant: bool = False
    gradient: bool = False

    @property
    def agrees(self) -> bool:
        return self.relative <= TOLERANCE


@dataclass
class Run:
    """The results of a run. blobs: by name; scores: of each Proposal's rois; made_of: the rois that a blob depends on."""

    blobs: dict[str, Array] = field(default_factory=dict)
    scores: dict[str, Array] = field(default_factory=dict)
    made_of: dict[str, str] = field(default_factory=dict)


def run_of(net: Net, names: Iterable[str], *, until: str | None = None) -> Run:
    """Run net up to layer `until`; return the last values of the named blobs and of the proposals.

    Recurrent layers begin with states of 0, as in a converted net. Their states stay, and so do the inputs.
    """
    wanted, run = set(names), Run()
    states = [blob for layer in net.layers if isinstance(layer, Stateful) for blob in layer.last_states]
    carried = [blob.data.copy() for blob in states]
    for blob in states:
        blob.data[...] = 0
    inputs = {name: net.blobs[name].read_data().copy() for name in net.inputs}  # a layer may change them in place
    proposed = [layer for layer in net.layers if isinstance(layer, Proposal)]

    def keep(i: int) -> None:
        layer, tops = net.nodes[i].layer, net.nodes[i].top_names
        if layer in proposed:
            run.scores[tops[0]] = _scores(layer, [net.blobs[name] for name in net.bottom_names[layer.name]])
        for name in tops:
            if name in wanted or layer in proposed:
                run.blobs[name] = net.blobs[name].read_data().copy()

    net.after_forward(keep)
    try:
        net.forward(end=until)
    finally:
        net.remove_hook(keep)
        for name, array in inputs.items():
            net.blobs[name].data[...] = array
        for blob, array in zip(states, carried, strict=True):
            if blob.shape == array.shape:  # else this run reshaped the net
                blob.data[...] = array
    graph = graph_of(net.nodes)
    for i in (i for i, layer in enumerate(net.layers) if layer in proposed):
        rois = graph.name((i, 0))
        dependent = (graph.name(value) for k in graph.after([(i, 0)]) for value in graph.values(k))
        run.made_of.update(dict.fromkeys([rois, *dependent], rois))
    return run


def _scores(layer: Proposal, bottoms: list[Blob]) -> Array:
    """Return the scores (R,) of the proposals."""
    # The net's Proposal may have one top: run again with two, which gives the scores.
    rois, scores = Blob(dtype=layer.dtype), Blob(dtype=layer.dtype)
    layer.forward_cpu(bottoms, [rois, scores])
    values: Array = scores.data.reshape(-1).copy()
    return values


def differences(ours: Run, theirs: Mapping[str, Array]) -> list[Difference]:
    """Return a Difference for each array of theirs, by name."""
    orders = {rois: matched(ours.blobs[rois], theirs[rois], scores) for rois, scores in ours.scores.items() if rois in theirs}
    found = []
    for name, array in theirs.items():
        if name not in ours.blobs:
            raise Error(f"output {name} is not a blob of the net")
        order, note = orders.get(ours.made_of.get(name, ""), (None, ""))
        # Only outputs with a row for each roi follow the proposals' order.
        rows = array[order] if order is not None and array.shape[:1] == order.shape else array
        found.append(difference(name, ours.blobs[name], rows, note if name in orders else ""))
    return found


def difference(name: str, ours: Array, theirs: Array, note: str = "", scale: float | None = None) -> Difference:
    """Return the difference of two arrays.

    scale: for a gradient, which is relative to the larger of scale and ours' largest magnitude.
    """
    if ours.shape != theirs.shape:
        return Difference(name, ours.shape, theirs.shape, np.inf, np.inf, note)
    with np.errstate(invalid="ignore"):
        apart = np.where((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)), 0, np.abs(ours.astype(np.float64) - theirs))
    largest = float(np.nan_to_num(apart, nan=np.inf).max(initial=0))
    finite = ours[np.isfinite(ours)]
    over = max(scale or 0.0, float(np.abs(finite).max(initial=0)))
    constant = ours.size != 1 and bool((ours.ravel() == ours.flat[:1]).all())
    relative = largest / over if over else largest
    return Difference(name, ours.shape, theirs.shape, largest, relative, note, constant, gradient=scale is not None)


def uninformative(found: Iterable[Difference]) -> str:
    """Return a message if agreement means nothing, because each output has one number throughout; else ""."""
    outputs = [one for one in found if not one.gradient]
    if not all(one.constant for one in outputs):
        return ""
    names = ", ".join(f"{one.name} {one.shape}" for one in outputs)
    return f"nothing to compare: every output is empty or has only one value: {names}"


def matched(ours: Array, theirs: Array, scores: Array) -> tuple[NDArray[np.intp] | None, str]:
    """Return the order that brings theirs (R, 5) into the order of ours (R, 5), None for no change; and a note on moved rows.

    scores: ours (R,). Rows within the tolerance stay; each other one is matched with the nearest one left.
    """
    if ours.shape != theirs.shape:
        return None, ""
    tolerance = TOLERANCE * float(np.abs(ours).max(initial=0))
    moved = np.flatnonzero(~(np.abs(ours - theirs).max(axis=1) <= tolerance))  # ~(<=): NaN counts as moved
    if not moved.size:
        return None, ""
    order, lost = np.arange(len(ours)), 0
    left = list(moved)
    for i in moved:
        far = np.abs(theirs[left] - ours[i]).max(axis=1)
        nearest = int(np.nanargmin(far)) if not np.isnan(far).all() else 0
        if far[nearest] <= tolerance:
            order[i] = left.pop(nearest)
        else:
            lost += 1
    if lost:
        return None, f"{lost} of {len(ours)} proposals have no counterpart within {tolerance:.2g} pixels"
    gap = float(np.abs(scores[order] - scores).max(initial=0))
    note = f"{moved.size} proposals in another order (scores within {gap:.1e})"
    if gap > TOLERANCE * float(np.abs(scores).max(initial=0)):
        return None, f"{note}, which are not near ties"
    return order, f"{note}: outputs compared in the matched order"
