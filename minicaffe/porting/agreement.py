"""How far the outputs of two runs of one net are apart, with the proposals of both brought into one order first.

Two proposals whose scores differ in the last digits may come in either order, and then every output with a row for each roi
has its rows in another order too. That is no difference: rois are matched by where they lie, those that changed places must
have scores that are nearly equal, and the outputs that depend on them are compared in the matched order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.errors import Error
from minicaffe.layers.proposal import Proposal
from minicaffe.net import Net

Array = NDArray[Any]

TOLERANCE = 1e-4
"""The largest relative difference that counts as agreement."""


@dataclass(frozen=True)
class Difference:
    """How far an output of one run is from the other's.

    shape: the first's; other_shape: the other's. largest: the largest difference; relative: over the first's largest magnitude.
    Both are infinite where the shapes differ. note: of rois, how many stand in another order, or have no counterpart.
    """

    name: str
    shape: tuple[int, ...]
    other_shape: tuple[int, ...]
    largest: float
    relative: float
    note: str = ""

    @property
    def agrees(self) -> bool:
        return self.relative <= TOLERANCE


@dataclass
class Run:
    """What one run of a net gave: blobs by name; of each Proposal's rois their scores; which blobs come of which rois."""

    blobs: dict[str, Array] = field(default_factory=dict)
    scores: dict[str, Array] = field(default_factory=dict)
    made_of: dict[str, str] = field(default_factory=dict)


def run_of(net: Net, names: Iterable[str], *, until: str | None = None) -> Run:
    """Run net, up to layer until, and keep the blobs of these names as they were last written, and its proposals."""
    wanted, run = set(names), Run()
    proposed = [layer for layer in net.layers if isinstance(layer, Proposal)]

    def keep(i: int) -> None:
        layer, tops = net.layers[i], net.top_names[net.layers[i].name]
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
    for layer in proposed:
        rois = net.top_names[layer.name][0]
        run.made_of.update(dict.fromkeys(_behind(net, rois), rois))
    return run


def _scores(layer: Proposal, bottoms: list[Blob]) -> Array:
    """The scores (R,) of the rois that layer makes of its bottoms."""
    rois, scores = Blob(dtype=layer.dtype), Blob(dtype=layer.dtype)
    layer.forward_cpu(bottoms, [rois, scores])
    values: Array = scores.data[:, 0].copy()
    return values


def _behind(net: Net, blob: str) -> set[str]:
    """blob, and the blobs that are computed from it."""
    found = {blob}
    for layer in net.layers:
        if found.intersection(net.bottom_names[layer.name]):
            found.update(net.top_names[layer.name])
    return found


def differences(ours: Run, theirs: Mapping[str, Array]) -> list[Difference]:
    """A Difference for each array of theirs, by name."""
    orders = {rois: matched(ours.blobs[rois], theirs[rois], scores) for rois, scores in ours.scores.items() if rois in theirs}
    found = []
    for name, array in theirs.items():
        if name not in ours.blobs:
            raise Error(f"output {name} is none of the net's")
        order, note = orders.get(ours.made_of.get(name, ""), (None, ""))
        rows = array[order] if order is not None and array.shape[:1] == order.shape else array
        found.append(difference(name, ours.blobs[name], rows, note if name in orders else ""))
    return found


def difference(name: str, ours: Array, theirs: Array, note: str = "") -> Difference:
    """The difference of two arrays."""
    if ours.shape != theirs.shape:
        return Difference(name, ours.shape, theirs.shape, np.inf, np.inf, note)
    with np.errstate(invalid="ignore"):
        apart = np.where((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)), 0, np.abs(ours.astype(np.float64) - theirs))
    largest = float(np.nan_to_num(apart, nan=np.inf).max(initial=0))
    finite = ours[np.isfinite(ours)]
    scale = float(np.abs(finite).max(initial=0))
    return Difference(name, ours.shape, theirs.shape, largest, largest / scale if scale else largest, note)


def matched(ours: Array, theirs: Array, scores: Array) -> tuple[NDArray[np.intp] | None, str]:
    """The rows of theirs (R, 5) in the order of ours (R, 5), and a sentence on those that moved; None: as they stand.

    scores: ours (R,). Rows that are within the tolerance stay; each other one goes to the nearest that is left.
    """
    if ours.shape != theirs.shape:
        return None, ""
    tolerance = TOLERANCE * float(np.abs(ours).max(initial=0))
    moved = np.flatnonzero(~(np.abs(ours - theirs).max(axis=1) <= tolerance))
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
    said = f"{moved.size} proposals in another order (scores within {gap:.1e})"
    if gap > TOLERANCE * float(np.abs(scores).max(initial=0)):
        return None, f"{said}, which are no near ties"
    return order, f"{said}: outputs compared in the matched order"
