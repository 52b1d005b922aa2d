"""Node: one layer of a net with the blobs that it reads and writes, and what backward does there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .blob import Blob
from .layer import Layer


@dataclass
class Node:
    """A layer in its place in a net; net.nodes holds them in the order in which they run.

    bottoms, tops: the blobs, and bottom_names, top_names how the net calls them; an in-place top is its bottom's blob.
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
        """Backward leaves the layer out."""
        self.needs_backward = False
        self.bottom_needs = [False] * len(self.bottoms)


def drop_unasked_gradients(nodes: Sequence[Node]) -> None:
    """Drop the gradients that no loss asks for, or that every reader declines. Source: Caffe's Net::Init."""
    under_loss: set[str] = set()
    declined: set[str] = set()
    for node in reversed(nodes):
        if node.needs_backward and all(name in declined for name in node.top_names):
            node.needs_nothing()
        if any(w or name in under_loss for w, name in zip(node.layer.loss_weights, node.top_names, strict=True)):
            under_loss.update(node.bottom_names)
        else:
            node.needs_nothing()
        declined.update(name for name, needs in zip(node.bottom_names, node.bottom_needs, strict=True) if not needs)
