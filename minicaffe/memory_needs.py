"""How much memory a run of a net takes at its most, worked out from shapes alone.

    weights + what layers keep + blobs + the most that one layer works in
With keep="outputs" a blob counts from the layer that makes it to its last reader; the peak is that of the worst layer.
In TRAIN: forward and backward, so also the diffs of the weights and of the blobs that have a gradient. A solver's history
comes on top: as much as the weights for SGD, twice as much for Adam. Python and its libraries, about 50 MiB, are left out.

What layers keep for backward (BatchNorm its batch normalised, Scale what it overwrites) counts in TEST too: only
with keep="outputs" do they keep nothing of the kind.

What a layer works in is known for convolutions, whose share is large, and for Proposal; others are taken to copy their first
bottom, but for those that go over their blobs in small blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from . import threads
from .blob import Blob
from .blob_memory import lifetimes
from .layers.batch_norm import BatchNorm
from .layers.convolution import Convolution
from .layers.convolution_blocks import BLOCK_BYTES
from .layers.convolution_products import suits
from .layers.deconvolution import Deconvolution
from .layers.proposal import Proposal
from .layers.scale import Scale
from .layers.winograd import tiles_at_once
from .layers.winograd_kept import kept_bytes
from .mode import TRAIN
from .node import Node

if TYPE_CHECKING:
    from .net import Net

IN_BLOCKS = {
    "BatchNorm", "Bias", "Dropout", "Eltwise", "Flatten", "InnerProduct", "Input", "Pooling", "Power", "ReLU", "Reshape",
    "Scale", "Sigmoid", "Silence", "Slice", "Split", "TanH",
}  # fmt: skip
"""Layers that copy no bottom."""


@dataclass(frozen=True)
class MemoryNeeds:
    """Bytes. kept: by layers between forwards (Winograd's factors), and from forward to backward. blobs: the data of all.
    diffs: of weights and blobs, in TRAIN. working: of the layer that takes most, beside its blobs. peak: all of it.
    peak_of_outputs: with keep="outputs"; None in TRAIN."""

    weights: int
    kept: int
    blobs: int
    diffs: int
    working: int
    peak_of_outputs: int | None

    @property
    def peak(self) -> int:
        return self.weights + self.kept + self.blobs + self.diffs + self.working


def memory_needs(net: Net) -> MemoryNeeds:
    """What a run needs at the shapes that the net's blobs have now."""
    training = net.phase == TRAIN
    working = [_forward_bytes(node) + (_backward_bytes(node) if training else 0) for node in net.nodes]
    factors = 0 if training else sum(_factor_bytes(node) for node in net.nodes)
    chains = [] if training else [chain for chain in net.plan.chains.values() if not chain.backward_lacks()]
    joined = {id(node) for chain in chains for node in chain.nodes}
    for_backward = sum(_bytes_for_backward(node, training) for node in net.nodes if id(node) not in joined)
    weights = _bytes(net.learnable_params)
    return MemoryNeeds(
        weights=weights,
        kept=factors + for_backward,
        blobs=_bytes(top for node in net.nodes for top in node.tops),
        diffs=weights + _diff_bytes(net.nodes) if training else 0,
        working=max(working, default=0),
        peak_of_outputs=None if training else weights + factors + _most_alive(net, working),
    )


def _bytes(blobs: Iterable[Blob]) -> int:
    """Of the data of these blobs; memory that several share counts once."""
    return sum({id(blob._data): blob.count * blob.dtype.itemsize for blob in blobs}.values())


def _diff_bytes(nodes: Sequence[Node]) -> int:
    """Of the diffs that backward reads and writes."""
    blobs: list[Blob] = []
    for node in nodes:
        if node.needs_backward:
            blobs += [*node.tops, *(blob for blob, needs in zip(node.bottoms, node.bottom_needs, strict=True) if needs)]
    return sum({id(blob): blob.count * blob.dtype.itemsize for blob in blobs}.values())


def _most_alive(net: Net, working: Sequence[int]) -> int:
    """The most bytes of blobs alive while a layer runs, with what it works in."""
    lives = lifetimes(net.nodes, [*net.inputs, *net.outputs])
    inner = {name for made in lives.made for name in made}
    alive: dict[str, Blob] = {}
    holders: Counter[int] = Counter()  # of each memory, how many blobs alive lie in it
    taken = most = 0

    def end(name: str) -> int:
        """The blob is alive no longer: the bytes that go with it."""
        blob = alive.pop(name)
        holders[id(blob._data)] -= 1
        return 0 if holders[id(blob._data)] else _bytes([blob])

    def begin(name: str, blob: Blob) -> int:
        """The blob is alive: the bytes that it takes, beyond those of one that had the name before."""
        before = end(name) if name in alive else 0
        alive[name] = blob
        holders[id(blob._data)] += 1
        return (_bytes([blob]) if holders[id(blob._data)] == 1 else 0) - before

    taken += sum(begin(name, blob) for name, blob in net.blobs.items() if name not in inner)
    for made, ends, works in zip(lives.made, lives.ends, working, strict=True):
        taken += sum(begin(name, blob) for name, blob in made.items())
        most = max(most, taken + works)
        taken -= sum(end(name) for name in ends)
    return most


def _factor_bytes(node: Node) -> int:
    """Of Winograd's factors, which a convolution keeps in TEST."""
    layer = node.layer
    return kept_bytes(layer.blobs[0].data) if isinstance(layer, Convolution) and _by_winograd(layer, node) else 0


def _bytes_for_backward(node: Node, training: bool) -> int:
    """What the layer's forward keeps beside its blobs for backward, whether or not one comes."""
    layer = node.layer
    if isinstance(layer, Scale):
        return _bytes(node.bottoms[:1]) if layer.overwrites_what_backward_reads(node.bottoms, node.tops) else 0
    if isinstance(layer, BatchNorm):
        return 0 if layer.use_global_stats else _bytes(node.bottoms[:1])
    if not training or not node.needs_backward or isinstance(layer, Convolution) or layer.type in ("Split", "Pooling"):
        return 0
    held = [value for value in vars(layer).values() if isinstance(value, Blob)]
    return sum(blob.count * blob.dtype.itemsize for blob in held)


def _forward_bytes(node: Node) -> int:
    layer = node.layer
    if isinstance(layer, Proposal):  # for each anchor: its box, in float64, and some 21 numbers of what becomes of it
        return node.bottoms[0].count // 2 * (32 + 21 * layer.dtype.itemsize)
    if not isinstance(layer, Convolution):
        return 0 if layer.type in IN_BLOCKS or not node.bottoms else _bytes(node.bottoms[:1])
    if _by_winograd(layer, node):
        return _winograd_bytes(layer, node)
    return threads.get_num_threads() * 2 * BLOCK_BYTES  # columns, and what they are made from and multiplied to


def _backward_bytes(node: Node) -> int:
    """Of a convolution: two bordered copies, Winograd's factors made anew, and the product that is added to the diff."""
    layer = node.layer
    if not isinstance(layer, Convolution) or not node.needs_backward:
        return 0
    copies = sum(_bytes([blob]) for blob, needs in zip(node.bottoms, node.bottom_needs, strict=True) if needs)
    return copies + (5 if _by_winograd(layer, node) else 1) * _bytes(layer.blobs[:1])


def _by_winograd(layer: Convolution, node: Node) -> bool:
    """Whether the layer, in its present shapes, takes Winograd's way."""
    if isinstance(layer, Deconvolution) or layer.spatial_axes != 2 or layer.axis != 1:
        return False
    x, weight, y = (
        np.broadcast_to(np.zeros((), blob.dtype), blob.shape) for blob in (node.bottoms[0], layer.blobs[0], node.tops[0])
    )
    return suits(x, weight, layer.window, layer.group, y, kept=layer.phase != TRAIN)


def _winograd_bytes(layer: Convolution, node: Node) -> int:
    """Two buffers a thread, each of a block's transformed tiles, 36 numbers a tile and channel."""
    channels = max(layer.channels, layer.num_output) // layer.group
    tiles = min(tiles_at_once(channels), node.tops[0].count // layer.num_output // 16 + 1)
    return threads.get_num_threads() * 2 * 36 * tiles * channels * 4
