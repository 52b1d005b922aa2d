"""BlobMemory: a net's inner blobs give their memory back once their last reader has run. Net(..., keep="outputs").

What stays: the weights, the tops of layers that read nothing (inputs, data), the net's outputs, and what a forward is asked
for by name. Freed memory goes to the blobs after it (buffer_pool.py). To read a blob that has none is an Error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from .blob import Blob
from .buffer_pool import BufferPool
from .node import Node

GONE = (
    'the blob "{}" gave its memory back after its last reader had run: make the net with keep="all", or ask its forward for it'
    ' (blobs=["{}"])'
)


class BlobMemory:
    """The inner blobs of a net's nodes, and when each is read for the last time. keep: names of blobs that stay."""

    def __init__(self, nodes: Sequence[Node], keep: Iterable[str]) -> None:
        kept = {*keep, *(name for node in nodes if not node.bottoms for name in node.top_names)}
        self.asked_for: Collection[str] = ()
        """Names of blobs that stay for one forward."""
        self._made: list[list[Blob]] = []
        last: dict[str, int] = {}
        inner: dict[str, Blob] = {}
        pool = BufferPool()
        for i, node in enumerate(nodes):
            read = [name for name in node.bottom_names if name not in kept]
            made = {name: blob for name, blob in zip(node.top_names, node.tops) if name not in kept and name not in read}
            for blob in made.values():
                blob.lend_from(pool)
            self._made.append(list(made.values()))
            inner.update(made)
            last.update(dict.fromkeys([*read, *made], i))
        self._ends: list[list[str]] = [[] for _ in nodes]
        for name, i in last.items():
            self._ends[i].append(name)
        self._blobs = inner

    def before(self, i: int) -> None:
        """Layer i runs next: its tops may take memory again."""
        for blob in self._made[i]:
            blob.take_again()

    def after(self, i: int) -> None:
        """Layer i has run."""
        for name in self._ends[i]:
            if name not in self.asked_for:
                self._blobs[name].give_back(GONE.format(name, name))
