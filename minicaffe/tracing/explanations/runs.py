"""explain: run a net up to a layer (in backward: through it and back) and explain one number of the layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from minicaffe.blob import Array, Blob
from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.net import Net
from minicaffe.registry import explains, explains_gradient

from .case import Case
from .explanation import Explanation
from .gradients import with_gradients
from .places import Asked


def explain(  # noqa: PLR0913 - public, by keyword
    net: Net,
    layer: str,
    at: Sequence[int] | int | None = None,
    *,
    roi: int | None = None,
    channel: int | None = None,
    bin: Sequence[int] | None = None,
    top: int = 0,
    backward: bool = False,
    bottom: int = 0,
    cell: Sequence[int] | None = None,
    item: int | None = None,
    dy: str | ArrayLike | None = None,
    seed: int = 0,
    notes: Sequence[str] = (),
    prefix: str = "",
) -> Explanation:
    """Explain one number of a layer: the net runs up to the layer on its current inputs.

    Forward: the element `at` of top number `top`; for an ROI layer also roi, channel and bin (row, column).
    Backward: the gradient in the element `at` of bottom number `bottom`; for an ROI layer also channel, cell (row, column)
    and item (the image of the batch). dy: None for the gradient of the loss, or ones if no loss depends on the layer;
    "ones", "random" (with seed) or an array sets the first top's dy. Weights and their diffs do not change.
    notes: shown at the head of the text. prefix: put before the names of these arguments in errors.
    Raises Error for indices out of range and for types that are not covered.
    """
    index = net.index_of(layer)
    found = net.layers[index]
    explain_it = (explains_gradient if backward else explains).get(type(found))
    if explain_it is None:
        way = "the gradients of " if type(found) in explains else ""
        raise Error(f'explain does not cover {way}{found.type} (layer "{layer}"); it covers {", ".join(explains.names())}')
    count, what = (len(net.nodes[index].bottoms), "bottom") if backward else (len(net.nodes[index].tops), "top")
    number = bottom if backward else top
    if not 0 <= number < count:
        raise Error(f'{found.type} layer "{layer}": {prefix}{what} {number} is out of range: it has {what}s 0 to {count - 1}')
    if backward and number in found.index_bottoms:
        name = shown_name(net, net.bottom_names[layer][number])
        raise Error(f'{found.type} layer "{layer}": bottom {number} has no gradient ({name})')
    at = (at,) if isinstance(at, int) else at
    asked = Asked(at, roi, channel, bin, item, cell, prefix)
    # the losses' backward needs the layers behind too
    case = _forward(net, index, number, whole=backward and dy is None, notes=notes)
    place = asked.index(case, backward)
    if backward:
        case = with_gradients(net, index, case, dy, seed)
    explanation: Explanation = explain_it(case, place)
    return explanation


def _forward(net: Net, index: int, number: int, whole: bool, notes: Sequence[str]) -> Case[Layer]:
    """Run the net up to the layer, or the whole net, and copy the layer's bottoms before it ran and its tops after."""
    bottoms, tops = net.nodes[index].bottoms, net.nodes[index].tops
    before: list[Array] = []
    after: list[Array] = []

    def keep(arrays: list[Array], blobs: Sequence[Blob], i: int) -> None:
        if i == index:
            arrays.extend(blob.read_data().copy() for blob in blobs)

    # Copied before the layer runs, because it may work in place.
    keep_bottoms = net.before_forward(partial(keep, before, bottoms))
    keep_tops = net.after_forward(partial(keep, after, tops))
    try:
        with _statistics_kept(net):
            net.forward_from_to(0, len(net.layers) - 1 if whole else index)
    finally:
        net.remove_hook(keep_bottoms)
        net.remove_hook(keep_tops)
    names = [shown_name(net, name) for name in net.nodes[index].bottom_names], list(net.nodes[index].top_names)
    if set(names[0]) & set(names[1]):
        notes = [*notes, f"the layer overwrites {names[0][0]} in place: x is its value before the layer ran"]
    return Case(net.layers[index], *names, before, after, number=number, notes=tuple(notes))


def shown_name(net: Net, blob: str) -> str:
    """A bottom's name in the prototxt: for a top of an inserted Split, the blob that it copies."""
    for layer in net.layers:
        if layer.is_split and blob in layer.param.top:
            return str(layer.param.bottom[0])
    return blob


@contextmanager
def _statistics_kept(net: Net) -> Iterator[None]:
    """Restore the blobs that forward writes (BatchNorm's running statistics)."""
    # Blobs that no gradient moves (lr_mult: 0) are those that a forward pass may write.
    running = [layer for layer in net.layers if layer.blobs and not any(layer.param_propagate_down)]
    kept: list[tuple[Blob, Array]] = [(b, b.read_data().copy()) for layer in running for b in layer.blobs]
    try:
        yield
    finally:
        for blob, data in kept:
            if not np.array_equal(blob.read_data(), data, equal_nan=True):
                blob.data[...] = data
