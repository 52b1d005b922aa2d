"""explain: run a net up to a layer (in backward: through it and back) and explain one number of the layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from minicaffe.blob import Array, Blob, put_numbers
from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.layers.shape.split import Split
from minicaffe.net import Net
from minicaffe.registry import Table, explains, explains_gradient, explains_weight

from .explanation import Case, Explanation
from .places import Asked, weight_number
from .proposals import STEP, explain_candidate, explain_detection


def with_gradients(
    net: Net, index: int, case: Case[Layer], dy: str | ArrayLike | None, seed: int, weight: int | None = None
) -> Case[Layer]:
    """Return the case with the gradients of one backward through the layer.

    dy, seed: as in explain. weight: the number of a learnable blob of the layer whose diff gets its gradient, too. Raises Error
    for an invalid dy.
    """
    node = net.nodes[index]
    tops = node.tops
    with _switches_kept(net), net.running():
        for layer in net.layers:
            layer.param_propagate_down = [layer is node.layer and i == weight for i in range(len(layer.param_propagate_down))]
        kept = [(blob, blob.read_diff().copy()) for blob in tops]  # a loss's diff holds its loss_weight, which must survive
        note = _put_dy(net, index, dy, seed)
        dys = [blob.read_diff().copy() for blob in tops]
        _backward(net, index)
        dxs = [blob.read_diff().copy() for blob in node.bottoms]
        # Net.forward does not set a loss's diff again, so a dy of ours must not stay in it.
        for (blob, diff), loss_weight in zip(kept, node.layer.loss_weights, strict=True):
            if loss_weight:
                blob.diff[...] = diff
    return replace(case, dy=dys, dx=dxs, notes=(*case.notes, note))


def with_weight_gradient(net: Net, index: int, case: Case[Layer], dy: str | ArrayLike | None, seed: int) -> Case[Layer]:
    """Return with_gradients' case, and dw: what one backward adds to the diff of the learnable blob case.number."""
    blob = net.layers[index].blobs[case.number]
    kept = blob.read_diff().copy()
    blob.zero_diff()
    try:
        case = with_gradients(net, index, case, dy, seed, case.number)
        return replace(case, dw=blob.read_diff().copy())
    finally:
        blob.diff[...] = kept


def _put_dy(net: Net, index: int, dy: str | ArrayLike | None, seed: int) -> str:
    """Set the diffs of the layer's tops; return a note on them."""
    tops = net.nodes[index].tops
    if dy is None and (readers := _way_to_losses(net, index)) is not None:
        for i in (index, *readers):
            for blob, weight in zip(net.nodes[i].tops, net.layers[i].loss_weights, strict=True):
                if not weight:  # the diff of a loss is its loss_weight: left alone
                    blob.zero_diff()
        for i in reversed(readers):
            _backward(net, i)
        losses = [name for name, weight in net.blob_loss_weights.items() if weight]
        return f"dy is the gradient of the loss ({', '.join(losses)})"
    for blob in tops[1:]:
        blob.zero_diff()
    if dy is None or (isinstance(dy, str) and dy == "ones"):
        tops[0].diff[...] = 1
        return "every dy is 1" + "; no loss of the net depends on this layer" * (dy is None)
    if not isinstance(dy, str):
        put_numbers(net.nodes[index].top_names[0], tops[0].diff, dy)
        return "dy as given"
    if dy != "random":
        raise Error(f'dy must be "ones", "random" or an array, got "{dy}"')
    tops[0].diff[...] = np.random.default_rng(seed).standard_normal(tops[0].shape)
    return f"dy are standard normal values (seed {seed})"


def _way_to_losses(net: Net, index: int) -> list[int] | None:
    """Return the later layers that depend on this one, if one of them or this one is a loss; else None."""
    reached, found = set(net.nodes[index].top_names), []
    for i in range(index + 1, len(net.layers)):
        if reached & set(net.nodes[i].bottom_names):
            reached |= set(net.nodes[i].top_names)
            found.append(i)
    return found if any(any(net.layers[i].loss_weights) for i in (index, *found)) else None


def _backward(net: Net, i: int) -> None:
    """Run backward of one layer into every bottom that can have a gradient."""
    node = net.nodes[i]
    wanted = [j not in node.layer.index_bottoms for j in range(len(node.bottoms))]
    node.layer.backward_pass(node.tops, wanted, node.bottoms)


@contextmanager
def _switches_kept(net: Net) -> Iterator[None]:
    """After the block, set again which gradients each layer computes."""
    kept = [(layer, layer.gradient_wanted, layer.param_propagate_down) for layer in net.layers]
    try:
        yield
    finally:
        for layer, wanted, propagate in kept:
            layer.gradient_wanted, layer.param_propagate_down = wanted, propagate


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
    weight: int | str | None = None,
    index: int | None = None,
    anchor: Sequence[int] | None = None,
    size: Sequence[int] | None = None,
    seed: int = 0,
    start: int = 0,
    notes: Sequence[str] = (),
    prefix: str = "",
) -> Explanation:
    """Explain one number of a layer. The net runs up to the layer on its current inputs.

    Forward: the element `at` of top number `top`; for an ROI layer also roi, channel and bin (row, column). For a layer of
    boxes a whole row is explained: roi for Proposal, ProposalTarget and BoxAnnotatorOHEM, index for DetectionOutput. anchor
    (row, column of the map, number there) shows what happened to an anchor in a Proposal. layer "detection", if no layer has
    that name, is the step after a Faster R-CNN or R-FCN: index, where the best detection is 0, or roi. size: the photo's height
    and width (default: from im_info).
    Backward: the gradient in the element `at` of bottom number `bottom`; for an ROI layer also channel, cell (row, column) and
    item (the image of the batch). weight: instead the gradient in the element `at` of a learnable blob of the layer, given by
    its number, its name ("bias"), or both names ("conv1.1"). dy: None for the gradient of the loss, or ones if no loss depends
    on the layer; "ones", "random" (with seed) or an array sets the first top's dy. Weights and their diffs do not change.
    start: the number of the layer from which the net runs; the results of earlier layers are kept.
    notes: shown at the head of the text. prefix: put before the names of these arguments in errors.
    Raises Error for indices out of range and for types that are not covered.
    """
    at = (at,) if isinstance(at, int) else at
    asked = Asked(at, roi, channel, bin, item, cell, index, anchor, prefix)
    if layer == STEP and STEP not in net.layer_dict:
        if backward or weight is not None:
            raise Error(f"{STEP} is no layer and has no gradient: name a layer")
        return explain_detection(net, partial(_run, net, start, len(net.layers) - 1), asked, size, notes)
    i = net.index_of(layer)
    found = net.layers[i]
    explanation: Explanation
    if weight is not None:
        explain_it = _covered(explains_weight, found, "the weights' gradients of ")
        number = weight_number(found, weight, prefix)
        if not found.param_propagate_down[number]:
            notes = [*notes, f"lr_mult is 0: training does not compute this gradient of {layer}.{number}"]
        with _gradient_wanted(net, found, number):
            case = _forward(net, i, number, start, whole=dy is None, notes=notes)
            place = asked.of_weight(case, found.blobs[number].shape)
            with np.errstate(all="ignore"):  # as in the layer
                explanation = explain_it(with_weight_gradient(net, i, case, dy, seed), place)
        return explanation
    number = bottom if backward else top
    _check_number(net, i, number, backward, prefix)
    explain_it = _covered(explains_gradient, found, "the gradients of ") if backward else _covered(explains, found)
    # the losses' backward needs the layers after too
    with _gradient_wanted(net) if backward else nullcontext():
        case = _forward(net, i, number, start, whole=backward and dy is None, notes=notes)
    if anchor is not None and not backward and isinstance(found, Proposal):
        of_proposal: Case[Any] = case
        return explain_candidate(of_proposal, *asked.of_anchor(of_proposal))
    place = asked.element(case, backward)
    if backward:
        case = with_gradients(net, i, case, dy, seed)
    with np.errstate(all="ignore"):
        explanation = explain_it(case, place)
    return explanation


def _covered(table: Table[Callable[..., Any]], layer: Layer, what: str = "") -> Callable[..., Any]:
    """Return the function that explains the layer's type. Raises Error, which names the types that have one."""
    found = table.get(type(layer))
    if found is None:
        covered = ", ".join(table.names())
        raise Error(f'explain does not cover {what}{layer.type} (layer "{layer.name}"); it covers {what}{covered}')
    return found


def _check_number(net: Net, index: int, number: int, backward: bool, prefix: str) -> None:
    """Raise Error unless the layer has this top, or in backward this bottom with a gradient."""
    layer, node = net.layers[index], net.nodes[index]
    count, what = (len(node.bottoms), "bottom") if backward else (len(node.tops), "top")
    head = f'{layer.type} layer "{layer.name}":'
    if not count:
        raise Error(f"{head} it has no {what}s: nothing to explain")
    if not 0 <= number < count:
        raise Error(f"{head} {prefix}{what} {number} is out of range: it has {what}s 0 to {count - 1}")
    if backward and number in layer.index_bottoms:
        raise Error(f"{head} bottom {number} has no gradient ({shown_name(net, node.bottom_names[number])})")


@contextmanager
def _gradient_wanted(net: Net, layer: Layer | None = None, number: int = 0) -> Iterator[None]:
    """In the block, let forward keep everything that backward needs, even in a net without a loss.

    layer, number: also keep what the gradient in this learnable blob needs, even if training does not change it.
    """
    with _switches_kept(net):
        for each in net.layers:
            each.gradient_wanted = True
        if layer is not None:
            layer.param_propagate_down = [wanted or i == number for i, wanted in enumerate(layer.param_propagate_down)]
        yield


def _forward(net: Net, index: int, number: int, start: int, whole: bool, notes: Sequence[str]) -> Case[Layer]:
    """Run the net from layer `start` up to the layer, or if whole to its end; return the layer's Case.

    The bottoms are copied before the layer runs, the tops after it.
    """
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
        _run(net, start, len(net.layers) - 1 if whole else index)
    finally:
        net.remove_hook(keep_bottoms)
        net.remove_hook(keep_tops)
    names = [shown_name(net, name) for name in net.nodes[index].bottom_names], list(net.nodes[index].top_names)
    if set(names[0]) & set(names[1]):
        notes = [*notes, f"the layer overwrites {names[0][0]} in place: x is its value before the layer ran"]
    return Case(net.layers[index], *names, before, after, number=number, notes=tuple(notes))


def _run(net: Net, first: int, last: int) -> None:
    with _statistics_kept(net):
        net.forward_from_to(first, last)


def shown_name(net: Net, blob: str) -> str:
    """Return a bottom's name in the prototxt. For a top of an inserted Split, that is the blob that the Split copies."""
    split = net.layer_dict.get(blob.rpartition("_")[0])  # as insert_splits names its tops
    return str(split.param.bottom[0]) if isinstance(split, Split) and blob in split.param.top else blob


@contextmanager
def _statistics_kept(net: Net) -> Iterator[None]:
    """After the block, restore the learnable blobs that forward writes (BatchNorm's running statistics)."""
    # A forward may write only blobs that no gradient moves (lr_mult: 0).
    running = [b for layer in net.layers for b, moved in zip(layer.blobs, layer.param_propagate_down) if not moved]
    kept: list[tuple[Blob, Array]] = [(b, b.read_data().copy()) for b in running]
    try:
        yield
    finally:
        for blob, data in kept:
            if not np.array_equal(blob.read_data(), data, equal_nan=True):
                blob.data[...] = data
