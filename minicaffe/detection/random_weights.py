"""Weights for a net without weights, or with a file that lacks some."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import numpy as np

from minicaffe.errors import LayerError
from minicaffe.layer import Layer
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.net import Net
from minicaffe.parameters import weight_layers, weight_name

from .inputs import fill_inputs, image_inputs

PIXELS = 64.0
"""About the standard deviation of a photo's pixels."""
DELTAS = 0.1
"""The standard deviation of a Proposal's box deltas: 1 would make most boxes the whole image."""


def make_up_weights(net: Net, names: Iterable[str], seed: int) -> str:
    """Give all-zero weights of these layers, which have no filler, Gaussian values.

    Their BatchNorms and BNs get a variance of 1. Returns a note, or "".
    """
    random = np.random.default_rng(seed)
    done, normal = [], []
    for name, layer in _layers(net, names):
        blobs = layer.blobs
        if not layer.has_gradient:  # blobs without a gradient are not weights, e.g. DataAugmentation's mean
            continue
        own = [weight_name(layer, i) for i in range(len(blobs))]
        if variance := [blob for blob, what in zip(blobs, own) if what.startswith("variance")]:
            if not variance[0].data.any():  # variance 0 would divide by the root of eps
                for blob, what in zip(blobs, own):
                    if what.startswith(("variance", "factor", "correction")):  # factor and correction divide sums
                        blob.data[...] = 1
                normal.append(name)
            continue
        for blob in blobs:
            if len(blob.shape) > 1 and blob.count and not blob.data.any():
                std = (2 / (blob.count / blob.shape[0])) ** 0.5  # MSRA's std keeps values in range through ReLUs
                blob.data[...] = random.standard_normal(blob.shape, np.float32) * np.float32(std)
                done.append(name)
    gaussian = f"{len(done)} of these layers name no weight_filler and got Gaussian values (seed {seed})" if done else ""
    statistics = f"{len(normal)} layers got statistics: mean 0, variance 1" if normal else ""
    return "; ".join(filter(None, [gaussian, statistics]))


def draw_weights(net: Net, names: Iterable[str], seed: int, another: Callable[[], Net]) -> str:
    """Make up weights as make_up_weights does, then scale them so that values stay finite and differ in nets of any depth.

    One forward pass on generated inputs scales the weights that multiply the bottom, layer by layer. Their tops then have a
    standard deviation of 1 on photos, 0.1 if they are box deltas. Weights that a filler made stay. another: makes the net
    again, for that pass. Returns a note.
    """
    layers = _layers(net, names)
    names = [name for name, _ in layers]
    zero = [name for name, layer in layers if layer.linear and not layer.blobs[0].data.any()]
    make_up_weights(net, names, seed)
    if zero and net.inputs:
        trial = another()
        trial.share_with(net)
        fill_inputs(trial, {}, seed=seed)
        for name in image_inputs(trial):
            trial.blobs[name].data[...] *= PIXELS
        _scale(trial, set(zero))
    filled = len(names) - len(zero)
    start = "starts from its filler" if filled == 1 else "start from their fillers"
    start = f"{start}, statistics from mean 0 and variance 1"
    if not zero:
        return f"{filled} {'layer' if filled == 1 else 'layers'} {start} (seed {seed})"
    drawn = f"{len(zero)} {'layer has' if len(zero) == 1 else 'layers have'} random weights (seed {seed})"
    return f"{drawn}; {filled} {'other' if filled == 1 else 'others'} {start}" if filled else drawn


def _layers(net: Net, names: Iterable[str]) -> list[tuple[str, Layer]]:
    """Return the layers with weights under these names, including all of one name."""
    known = set(names)
    return [(layer.name, layer) for layer in weight_layers(net.layers).values() if layer.name in known]


def _scale(net: Net, names: set[str]) -> None:
    deltas = _deltas(net)

    def scale(i: int) -> None:
        node = net.nodes[i]
        if node.layer.name not in names:
            return
        for name in node.top_names:
            y = net.blobs[name].data
            spread = float(y.std()) if y.size > 1 else 0.0
            if spread > 0 and np.isfinite(spread):
                factor = net.dtype.type((DELTAS if node.layer.name in deltas else 1) / spread)
                y *= factor
                node.layer.blobs[0].data[...] *= factor

    net.after_forward(scale)
    try:
        with suppress(LayerError):  # the command's own forward reports the error, if it runs one
            net.forward()
    finally:
        net.remove_hook(scale)


def _deltas(net: Net) -> set[str]:
    """Return the layers whose tops are a Proposal's box deltas."""
    read = [node.bottoms[1] for node in net.nodes if isinstance(node.layer, Proposal)]
    return {node.layer.name for node in net.nodes if any(top.shares_data_with(blob) for top in node.tops for blob in read)}
