"""Node: one layer of a net with the blobs that it reads and writes, and which gradients backward computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .blob import Blob
from .layer import Layer


@dataclass
class Node:
    """A layer in a net; net.nodes is in the order of a forward.

    bottoms, tops: the blobs, with their names in the net; an in-place top is its bottom's blob.
    needs_backward: whether backward runs the layer. bottom_needs: for each bottom, whether backward computes its gradient.
    """

    layer: Layer
    bottoms: list[Blob]
    tops: list[Blob]
    bottom_names: list[str]
    top_names: list[str]
    bottom_needs: list[bool] = field(default_factory=list)
    needs_backward: bool = False

    def needs_nothing(self) -> None:
        """Let backward skip the layer."""
        self.needs_backward = False
        self.bottom_needs = [False] * len(self.bottoms)


def drop_unasked_gradients(nodes: Sequence[Node]) -> None:
    """Skip gradients that no loss needs, or that every reader declines. Source: Caffe's Net::Init."""
    under_loss: set[str] = set()
    declined: set[str] = set()
    for node in reversed(nodes):
        if node.needs_backward and all(name in declined for name in node.top_names):  # after splits a top has one reader
            node.needs_nothing()
        # Backwards through the net, so under_loss already holds what every later loss reads.
        if any(w or name in under_loss for w, name in zip(node.layer.loss_weights, node.top_names, strict=True)):
            under_loss.update(node.bottom_names)
        else:
            node.needs_nothing()
        declined.update(name for name, needs in zip(node.bottom_names, node.bottom_needs, strict=True) if not needs)
