"""Gradients summed over the ranks during the backward pass: blobs in buckets, each exchanged as soon as it is complete.

    backward of layer:   n   n-1  ...  k        ...   1   0
    bucket 0 (of n..k):                 started ................ waited for
    bucket 1:                                          started . waited for

Blobs are in the order in which backward completes them (a shared one after its last user), the same in all ranks.
Source: Caffe's parallel.cpp, which does this layer by layer (layer_wise_reduce).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.net import Net

from .ranks import Done, Ranks

BYTES = 4 << 20
"""The least size of a bucket but the last: few exchanges, with many layers left to hide them."""


class Bucket:
    """Blobs whose gradients are summed in one exchange, in host memory. last: the node whose backward completes them."""

    def __init__(self, blobs: list[Blob], last: int) -> None:
        self.blobs, self.last, self.dtype = blobs, last, blobs[0].dtype
        self.count = sum(blob.count for blob in blobs)
        self.flat: NDArray[Any] = np.empty(self.count if len(blobs) > 1 else 0, self.dtype)

    def start(self, ranks: Ranks) -> Done:
        """Start summing the gradients: in one flat copy, or in place for a single blob."""
        if len(self.blobs) == 1:
            self.flat = self.blobs[0].diff.reshape(-1)  # a view: the sum arrives in the diff
        else:
            np.concatenate([blob.read_diff().reshape(-1) for blob in self.blobs], out=self.flat)
        return ranks.start_sum(self.flat)

    def put(self, factor: float) -> None:
        """Write the sums, times factor, to the blobs' diffs."""
        at = 0
        for blob in self.blobs:
            diff = blob.diff.reshape(-1)
            np.multiply(self.flat[at : at + blob.count], diff.dtype.type(factor), out=diff)
            at += blob.count


class Gradients:
    """The gradients of a net's learnable blobs, averaged over ranks.

    overlapped: whether they are exchanged during backward, instead of after it. make: makes a bucket from blobs and their last
    node.
    """

    def __init__(self, net: Net, ranks: Ranks, overlapped: bool, make: Callable[[list[Blob], int], Bucket] = Bucket) -> None:
        self.net, self.ranks, self.overlapped = net, ranks, overlapped
        self.buckets = [make(blobs, last) for blobs, last in grouped(net, BYTES)]
        self.bytes = sum(bucket.count * bucket.dtype.itemsize for bucket in self.buckets)
        self._started: list[tuple[Bucket, Done]] = []

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Exchange the gradients of the block's backward pass: at its end, the diffs are the means over the ranks."""
        self._started = []
        if self.overlapped:
            self.net.after_backward(self._hook)
        try:
            yield
        finally:
            self.net.remove_hook(self._hook)
        self._start(0)  # what is left: all buckets if not overlapped
        for bucket, summed in self._started:
            self.ranks.wait(summed, "the sum of gradients")
            bucket.put(1 / self.ranks.count)

    def _hook(self, done: int) -> None:
        """Let the exchanges progress, and start those that the backward of layer `done` completes."""
        for _, summed in self._started:
            summed()
        self._start(done)

    def _start(self, done: int) -> None:
        """Start the buckets that are complete after the backward of layer `done`."""
        for bucket in self.buckets[len(self._started) :]:
            if bucket.last < done:  # buckets are sorted by last, so the rest is not complete either
                break
            self._started.append((bucket, bucket.start(self.ranks)))


def grouped(net: Net, least: int) -> list[tuple[list[Blob], int]]:
    """Return the learnable blobs that get a gradient, in groups, each with the node whose backward completes it.

    A group has at least `least` bytes; the last may have fewer.
    """
    made: list[tuple[list[Blob], int]] = []
    gathered: list[Blob] = []
    for last, blob in _finished(net):
        gathered.append(blob)
        if sum(each.count * each.dtype.itemsize for each in gathered) >= least:
            made.append((gathered, last))
            gathered = []
    return [*made, (gathered, 0)] if gathered else made


def _finished(net: Net) -> Sequence[tuple[int, Blob]]:
    """Return (last node that adds to it, blob) for each learnable blob that gets a gradient, in the order of backward."""
    first: dict[int, int] = {}
    for i, node in enumerate(net.nodes):
        for blob, wanted in zip(node.layer.blobs, node.layer.param_propagate_down, strict=True):
            if wanted and node.needs_backward:
                first.setdefault(id(blob.diff_memory), i)  # users of a shared blob have one memory
    found = [(first[id(blob.diff_memory)], blob) for blob in net.learnable_params if id(blob.diff_memory) in first]
    return sorted(found, key=lambda pair: -pair[0])  # stable: within a layer the same order in all ranks
