"""The gradients of one backward pass through one layer of a net."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from minicaffe.blob import put_numbers
from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.net import Net

from .case import Case


def with_gradients(
    net: Net, index: int, case: Case[Layer], dy: str | ArrayLike | None, seed: int, weight: int | None = None
) -> Case[Layer]:
    """The case with the gradients of one backward through the layer. dy, seed: as in explain. Raises Error for another dy.

    weight: the number of a learnable blob of the layer whose diff gets its gradient, too.
    """
    node = net.nodes[index]
    tops = node.tops
    with _weight_gradients(net, index, weight), net.running():
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
    """The case with dw, what one backward adds to the diff of the learnable blob case.number; else as with_gradients."""
    blob = net.layers[index].blobs[case.number]
    kept = blob.read_diff().copy()
    blob.zero_diff()
    try:
        case = with_gradients(net, index, case, dy, seed, case.number)
        return replace(case, dw=blob.read_diff().copy())
    finally:
        blob.diff[...] = kept


def _put_dy(net: Net, index: int, dy: str | ArrayLike | None, seed: int) -> str:
    """Set the diffs of the layer's tops; a note that says how."""
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
    """The later layers that depend on this one, if one of them or this one is a loss; else None."""
    reached, found = set(net.nodes[index].top_names), []
    for i in range(index + 1, len(net.layers)):
        if reached & set(net.nodes[i].bottom_names):
            reached |= set(net.nodes[i].top_names)
            found.append(i)
    return found if any(any(net.layers[i].loss_weights) for i in (index, *found)) else None


def _backward(net: Net, i: int) -> None:
    """Backward of one layer into every bottom that can have a gradient."""
    node = net.nodes[i]
    wanted = [j not in node.layer.index_bottoms for j in range(len(node.bottoms))]
    node.layer.backward_pass(node.tops, wanted, node.bottoms)


@contextmanager
def _weight_gradients(net: Net, index: int, weight: int | None) -> Iterator[None]:
    """No layer adds to the diffs of its weights meanwhile, but this one to that of its blob number `weight`."""
    kept = [(layer, layer.param_propagate_down) for layer in net.layers]
    for layer, wanted in kept:
        layer.param_propagate_down = [layer is net.layers[index] and i == weight for i in range(len(wanted))]
    try:
        yield
    finally:
        for layer, wanted in kept:
            layer.param_propagate_down = wanted
