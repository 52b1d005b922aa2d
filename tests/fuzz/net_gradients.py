"""Some gradients of a whole net in float64, against central differences of its loss.

An entry is left out where its differences to the two sides, or at two steps, are not the same: the loss has a kink there. So is
one so small beside the loss that the differences are rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from net_builder import RandomNet
from net_values import FoundError, ends, forward, forward_backward, learnt, make

from minicaffe import Blob, Net
from minicaffe.formats.prototxt import parse_net

STEP = 1e-6
TOLERANCE = 1e-4
"""Relative to the greatest of the two, and the root mean square of the blob's gradient."""
BLOBS, ENTRIES = 5, 2
"""How many blobs of a net are looked at, and how many numbers of each."""


@dataclass
class Checked:
    """How many numbers agreed, and how many were left out."""

    checked: int = 0
    left_out: int = 0


def check_gradients(random: RandomNet, seed: int) -> Checked:
    """Raises FoundError where a gradient is not that of the loss."""
    net = make(random, np.float64)
    for layer in net.layers:
        if layer.type == "MVN":  # whose gradient takes eps for 0, as Caffe's: where terms cancel that is seen
            layer.param.mvn_param.eps = 1e-30
    forward_backward(net, random)
    draws = np.random.default_rng([seed, 6])
    subjects = _subjects(net, random)
    checked = Checked()
    for k in draws.permutation(len(subjects))[:BLOBS]:
        name, blob = subjects[k]
        gradient = blob.diff.copy()
        rms = float(np.sqrt(np.mean(gradient**2)))
        for place in draws.choice(blob.count, min(ENTRIES, blob.count), replace=False):
            at = tuple(int(i) for i in np.unravel_index(int(place), blob.shape))
            _check_entry(net, random, f"{name}{list(at)}", blob, at, (float(gradient[at]), rms), checked)
    return checked


def _check_entry(
    net: Net, random: RandomNet, name: str, blob: Blob, at: tuple[int, ...], known: tuple[float, float], checked: Checked
) -> None:
    analytic, rms = known
    start = blob.data[at]

    def loss(delta: float) -> float:
        blob.data[at] = start + delta
        value = _loss(net, random)
        blob.data[at] = start
        return value

    here, up, down = loss(0), loss(STEP), loss(-STEP)
    numeric = (up - down) / (2 * STEP)
    scale = max(abs(analytic), abs(numeric), rms)
    noise = 1e-14 * max(1.0, abs(here)) / STEP
    if abs(analytic - numeric) <= TOLERANCE * scale + noise:
        checked.checked += 1
        return
    closer = (loss(STEP / 4) - loss(-STEP / 4)) / (STEP / 2)
    bent = max(abs((up - here) - (here - down)) / STEP, abs(closer - numeric))
    if bent > TOLERANCE * scale or noise > TOLERANCE * scale:
        checked.left_out += 1
        return
    raise FoundError(f"gradient of {name}: backward says {analytic:.9g}, differences {numeric:.9g}, {closer:.9g}")


def _loss(net: Net, random: RandomNet) -> float:
    blobs = forward(net)
    loss = sum(weight * float(blobs[name].sum()) for name, weight in net.blob_loss_weights.items() if weight)
    draws = np.random.default_rng(4)
    return loss + sum(float((draws.uniform(0.5, 1.5, net.blobs[name].shape) * blobs[name]).sum()) for name in ends(net, random))


def _subjects(net: Net, random: RandomNet) -> list[tuple[str, Blob]]:
    """What has a gradient: weights, and where backward is forced the inputs that are no labels, rois or the like."""
    if random.forced:
        before: set[str] = set()
        found = [(name, net.blobs[name]) for name in net.inputs if name in random.seen]
    else:
        before, found = _before(random), []
    for node in net.nodes:
        shared = before and any(param.name for param in node.layer.param.param)
        if node.needs_backward and not shared and not before & set(node.top_names):
            found += [(f"{node.layer.name}'s blob {i}", node.layer.blobs[i]) for i in learnt(node.layer)]
    return [(name, blob) for name, blob in found if blob.count]


def _before(random: RandomNet) -> set[str]:
    """The blobs from which a gradient is kept back by some propagate_down."""
    names = set(random.stopped)
    for layer in reversed(parse_net(random.text).param.layer):
        if names & set(layer.top):
            names.update(layer.bottom)
    return names
