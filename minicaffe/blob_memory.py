"""BlobMemory: a net's inner blobs are freed once their last reader has run. Net(..., keep="outputs").

Kept: the weights, the tops of layers without bottoms (inputs, data), the net's outputs, and blobs that the caller of forward
names. Reading a freed blob raises Error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from .blob import Blob
from .node import Node

GONE = (
    'the blob "{}" was freed after its last reader had run: make the net with keep="all", or name it in forward (blobs=["{}"])'
)


@dataclass(frozen=True)
class Lifetimes:
    """For each node of a net: the blobs that it makes, by name, and the names of those that it is the last to read.

    Without kept blobs: those in keep, and the tops of layers without bottoms.
    """

    made: list[dict[str, Blob]]
    ends: list[list[str]]


def lifetimes(nodes: Sequence[Node], keep: Iterable[str]) -> Lifetimes:
    """The lifetimes of these nodes' inner blobs. keep: names of blobs that are kept."""
    kept = {*keep, *(name for node in nodes if not node.bottoms for name in node.top_names)}
    made: list[dict[str, Blob]] = []
    last: dict[str, int] = {}
    for i, node in enumerate(nodes):
        tops = zip(node.top_names, node.tops, strict=True)
        made.append({name: blob for name, blob in tops if name not in kept and name not in node.bottom_names})
        # made[i] too: a top that nobody reads ends with its own layer.
        last.update((name, i) for name in (*node.bottom_names, *made[i]) if name not in kept)
    ends: list[list[str]] = [[] for _ in nodes]
    for name, i in last.items():
        ends[i].append(name)
    return Lifetimes(made, ends)


class BlobMemory:
    """Frees a net's inner blobs. keep: names of blobs that are kept."""

    def __init__(self, nodes: Sequence[Node], keep: Iterable[str]) -> None:
        self.asked_for: Collection[str] = ()
        """Names of blobs to keep in one forward."""
        self.stay: Collection[str] = ()
        """Names of blobs whose memory stays where it is, for CUDA graphs."""
        self._lives = lifetimes(nodes, keep)
        self._blobs = {name: blob for made in self._lives.made for name, blob in made.items()}

    def before(self, i: int) -> None:
        """Layer i runs next: its tops may allocate memory again."""
        for blob in self._lives.made[i].values():
            blob.take_again()

    def is_inner(self, name: str) -> bool:
        """Whether a forward frees the blob, if it is not asked for."""
        return name in self._blobs and name not in self.stay

    def after(self, i: int) -> None:
        """Layer i has run."""
        for name in self._lives.ends[i]:
            if name not in self.asked_for and self.is_inner(name):
                # Only this blob's reference to the memory: Split's and Reshape's tops, which share it, keep it.
                self._blobs[name].give_back(GONE.format(name, name))
