"""BlobMemory frees a net's inner blobs once their last reader has run. Net(..., keep="outputs").

Kept: the weights, the tops of layers without bottoms (inputs, data), the net's outputs, and blobs that the caller of forward
names. Reading a freed blob raises Error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from .blob import Blob, SyncedMemory
from .layer_list import Node

GONE = (
    'the blob "{}" was freed after its last reader had run: make the net with keep="all", or name it in forward (blobs=["{}"])'
)


@dataclass(frozen=True)
class Lifetimes:
    """The blobs that each node of a net makes, by name, and the names of those that it is the last to read.

    Kept blobs are left out: those in keep, and the tops of layers without bottoms.
    """

    made: list[dict[str, Blob]]
    ends: list[list[str]]


def lifetimes(nodes: Sequence[Node], keep: Iterable[str]) -> Lifetimes:
    """Return the lifetimes of these nodes' inner blobs. keep: names of blobs that are kept."""
    kept = {*keep, *(name for node in nodes if not node.bottoms for name in node.top_names)}
    made: list[dict[str, Blob]] = []
    last: dict[str, int] = {}
    for i, node in enumerate(nodes):
        tops = zip(node.top_names, node.tops, strict=True)
        made.append({name: blob for name, blob in tops if name not in kept and name not in node.bottom_names})
        # made[i] is included because a top without readers ends with its own layer.
        last.update((name, i) for name in (*node.bottom_names, *made[i]) if name not in kept)
    ends: list[list[str]] = [[] for _ in nodes]
    for name, i in last.items():
        ends[i].append(name)
    return Lifetimes(made, ends)


class BlobMemory:
    """The memory of a net's inner blobs, which it frees. keep: names of blobs that are kept."""

    def __init__(self, nodes: Sequence[Node], keep: Iterable[str]) -> None:
        self.nodes = nodes
        self.arena: object = None
        """The shared memory of the blobs that a program's layers use, if there is a program."""
        self.asked_for: Collection[str] = ()
        """Names of blobs to keep in one forward."""
        self.stay: Collection[str] = ()
        """Names of blobs whose memory must not move, for CUDA graphs."""
        self.lives = lifetimes(nodes, keep)
        self.blobs = {name: blob for made in self.lives.made for name, blob in made.items()}
        tops = {name: blob for node in nodes for name, blob in zip(node.top_names, node.tops, strict=True)}
        self._others = [blob for name, blob in tops.items() if name not in self.blobs]

    def before(self, i: int) -> None:
        """Let the tops of layer i, which runs next, allocate memory again."""
        for blob in self.lives.made[i].values():
            blob.take_again()

    def is_inner(self, name: str) -> bool:
        """Return whether a forward frees the blob if the caller does not ask for it."""
        return name in self.blobs and name not in self.stay

    def after(self, i: int) -> None:
        """Free the blobs that layer i, which has run, was the last to read."""
        self.free(self.lives.ends[i])

    def free(self, names: Sequence[str]) -> None:
        inner = [name for name in names if name in self.blobs and not self.blobs[name].data_memory.borrowed]
        kept = self.kept() if inner else ()
        for name in inner:
            if (blob := self.blobs[name]).data_memory not in kept:
                # Split's and Reshape's tops share the memory and keep it: only this blob's reference goes.
                blob.give_back(GONE.format(name, name))

    def kept(self) -> set[SyncedMemory]:
        """Return the memory of blobs that stay."""
        named = (self.blobs[name] for name in {*self.asked_for, *self.stay} if name in self.blobs)
        return {blob.data_memory for blob in (*self._others, *named)}

    def asked_for_inner(self) -> frozenset[str]:
        """Return the inner blobs that the present forward keeps."""
        return frozenset(name for name in self.asked_for if name in self.blobs)
