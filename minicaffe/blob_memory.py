"""BlobMemory: a net's inner blobs give their memory back once their last reader has run. Net(..., keep="outputs").

What stays: the weights, the tops of layers that read nothing (inputs, data), the net's outputs, and what a forward is asked
for by name. To read a blob that has none is an Error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from .blob import Blob
from .node import Node

GONE = (
    'the blob "{}" gave its memory back after its last reader had run: make the net with keep="all", or ask its forward for it'
    ' (blobs=["{}"])'
)


@dataclass(frozen=True)
class Lifetimes:
    """Of a net's nodes: the blobs by name that each one makes, and the names of those that it is the last to read.

    Blobs that stay are left out: those of the names in keep, and the tops of layers that read nothing.
    """

    made: list[dict[str, Blob]]
    ends: list[list[str]]


def lifetimes(nodes: Sequence[Node], keep: Iterable[str]) -> Lifetimes:
    """When the inner blobs of these nodes begin and end. keep: names of blobs that stay."""
    kept = {*keep, *(name for node in nodes if not node.bottoms for name in node.top_names)}
    made: list[dict[str, Blob]] = []
    last: dict[str, int] = {}
    for i, node in enumerate(nodes):
        tops = zip(node.top_names, node.tops, strict=True)
        made.append({name: blob for name, blob in tops if name not in kept and name not in node.bottom_names})
        last.update((name, i) for name in (*node.bottom_names, *made[i]) if name not in kept)
    ends: list[list[str]] = [[] for _ in nodes]
    for name, i in last.items():
        ends[i].append(name)
    return Lifetimes(made, ends)


class BlobMemory:
    """The inner blobs of a net's nodes, and when each is read for the last time. keep: names of blobs that stay."""

    def __init__(self, nodes: Sequence[Node], keep: Iterable[str]) -> None:
        self.asked_for: Collection[str] = ()
        """Names of blobs that stay for one forward."""
        self._lives = lifetimes(nodes, keep)
        self._blobs = {name: blob for made in self._lives.made for name, blob in made.items()}

    def before(self, i: int) -> None:
        """Layer i runs next: its tops may take memory again."""
        for blob in self._lives.made[i].values():
            blob.take_again()

    def after(self, i: int) -> None:
        """Layer i has run."""
        for name in self._lives.ends[i]:
            if name not in self.asked_for:
                self._blobs[name].give_back(GONE.format(name, name))
