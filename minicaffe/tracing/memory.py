"""The peak memory of a run of a net, computed from shapes alone.

    weights + data kept by layers + blobs + the largest working memory of a layer
With keep="outputs" a blob counts from the layer that makes it to its last reader; the peak is that of the worst layer.
In TRAIN: forward and backward, with the diffs of the weights and of the blobs that have a gradient. A solver's history is
not included: as much as the weights for SGD, twice as much for Adam. Nor are Python and its libraries, about 50 MiB.

Data kept for backward (BatchNorm's normalised batch, the input that Scale overwrites) counts in TEST too, except with
keep="outputs". Layers report it (Layer.costs); the default is a copy of the first bottom.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minicaffe.blob import Blob
from minicaffe.blob_memory import lifetimes
from minicaffe.layer_list import Node
from minicaffe.mode import TRAIN

if TYPE_CHECKING:
    from minicaffe.net import Net


@dataclass(frozen=True)
class MemoryNeeds:
    """Bytes. kept: by layers between forwards (Winograd's factors, panels of weights), and from forward to backward. blobs: the
    data of all. diffs: of weights and blobs, in TRAIN. working: the largest of a layer, besides its blobs. peak: the sum.
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
    """The memory of a run at the current shapes of the net's blobs."""
    training = net.phase == TRAIN
    costs = [
        node.layer.costs(node.bottoms, node.tops, node.bottom_needs if training and node.needs_backward else None)
        for node in net.nodes
    ]
    cached, working = sum(each.cached for each in costs), [each.working for each in costs]
    chains = [chain for chain in net.plan.chains.values() if not chain.backward_lacks()]
    joined = {id(node) for chain in chains for node in chain.nodes[1:]}  # in one step with the first, they keep nothing
    for_backward = sum(each.saved for node, each in zip(net.nodes, costs, strict=True) if id(node) not in joined)
    weights = _bytes(net.learnable_params)
    return MemoryNeeds(
        weights=weights,
        kept=cached + for_backward,
        blobs=_bytes(top for node in net.nodes for top in node.tops),
        diffs=weights + _diff_bytes(net.nodes) if training else 0,
        working=max(working, default=0),
        peak_of_outputs=None if training else weights + cached + _most_alive(net, working),
    )


def _bytes(blobs: Iterable[Blob]) -> int:
    """Of the data of these blobs; shared memory counts once."""
    return sum({id(blob.data_memory): blob.count * blob.dtype.itemsize for blob in blobs}.values())


def _diff_bytes(nodes: Sequence[Node]) -> int:
    """Of the diffs that backward reads and writes."""
    blobs: list[Blob] = []
    for node in nodes:
        if node.needs_backward:
            blobs += [*node.tops, *(blob for blob, needs in zip(node.bottoms, node.bottom_needs, strict=True) if needs)]
    return sum({id(blob): blob.count * blob.dtype.itemsize for blob in blobs}.values())


def _most_alive(net: Net, working: Sequence[int]) -> int:
    """The most bytes of live blobs and working memory while a layer runs."""
    lives = lifetimes(net.nodes, [*net.inputs, *net.outputs])
    inner = {name for made in lives.made for name in made}
    alive: dict[str, Blob] = {}
    holders: Counter[int] = Counter()  # the number of live blobs in each memory
    taken = most = 0

    def end(name: str) -> int:
        """End a blob's life: the bytes that become free."""
        blob = alive.pop(name)
        holders[id(blob.data_memory)] -= 1
        return 0 if holders[id(blob.data_memory)] else _bytes([blob])

    def begin(name: str, blob: Blob) -> int:
        """Begin a blob's life: the bytes that it takes, less those of a blob that had the name before."""
        before = end(name) if name in alive else 0
        alive[name] = blob
        holders[id(blob.data_memory)] += 1
        return (_bytes([blob]) if holders[id(blob.data_memory)] == 1 else 0) - before

    # Inputs and outputs live for the whole run.
    taken += sum(begin(name, blob) for name, blob in net.blobs.items() if name not in inner)
    for made, ends, works in zip(lives.made, lives.ends, working, strict=True):
        taken += sum(begin(name, blob) for name, blob in made.items())
        most = max(most, taken + works)
        taken -= sum(end(name) for name in ends)
    return most
