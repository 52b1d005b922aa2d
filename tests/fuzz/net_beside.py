"""Each layer of a float32 net beside the same layer in float64, forward and backward, on the very same numbers.

The float64 layer reads what the float32 one read, so that errors do not add up, and both stand on the same side of every kink:
the sign that ReLU looks at, the maximum that pooling finds, the edge that a roi is rounded to. What still lies further apart
than the tolerance is wrong, unless a step of float32 in what the layer reads moves its result, in either type, by a hundredth
as much: there it has no exact value to compare with (a variance of nearly nothing, rois on an edge). Those are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
from net_builder import Array, RandomNet
from net_values import SINGLE, FoundError, Nudge, far, forward_backward, learnt, make, seed

from minicaffe import Blob, Net
from minicaffe.layer_list import Node

MOST = 1e4
"""Beyond values as large as this a net is not compared: it has grown without bound."""


class TooLargeError(Exception):
    """The net's values have grown beyond MOST."""


class Beside:
    """compared, unsteady: how many passes of layers."""

    def __init__(self, random: RandomNet) -> None:
        self.single, self.double = make(random, np.float32), make(random, np.float64)
        self.rough = make(random, np.float32)
        self.compared = 0
        self.unsteady: Counter[str] = Counter()
        self._given: dict[int, list[Array]] = {}
        self.single.before_forward(self._before_forward)
        self.single.after_forward(self._after_forward)
        self.single.before_backward(self._before_backward)
        self.single.after_backward(self._after_backward)
        forward_backward(self.single, random)

    def _nodes(self, i: int) -> tuple[Node, Node]:
        return self.single.nodes[i], self.double.nodes[i]

    def _before_forward(self, i: int) -> None:
        one, other = self._nodes(i)
        _copy(one.bottoms, other.bottoms)
        _copy(one.layer.blobs, other.layer.blobs)
        self._given[i] = [blob.data.copy() for blob in other.bottoms]
        seed(i)

    def _after_forward(self, i: int) -> None:
        one, other = self._nodes(i)
        seed(i)
        other.layer.forward_pass(other.bottoms, other.tops)
        wanted = [blob.data.copy() for blob in other.tops]
        for blob in other.tops:
            self._check_size(i, blob)
        for got, want in zip(one.tops, wanted, strict=True):
            if not (distance := far(got.data, want)) <= SINGLE:
                self._judge("forward", i, distance, self._moved(i))
        self.compared += 1

    def _check_size(self, i: int, blob: Blob) -> None:
        large = np.abs(blob.data).max(initial=0)
        if large > MOST and _finite(self._given[i]) and np.isfinite(large):
            raise TooLargeError
        if not np.isfinite(large):
            raise FoundError(f"forward of {self.single.layers[i].name} in float64: not finite")

    def _give(self, net: Net, i: int, nudge: Nudge | None) -> Node:
        """Run a net's layer forward on what was given, as it was or nudged."""
        node, layer = net.nodes[i], net.nodes[i].layer
        _copy(self.single.layers[i].blobs, layer.blobs)
        for b, (blob, given) in enumerate(zip(node.bottoms, self._given[i], strict=True)):
            rois = node.bottom_names[b].startswith("rois")
            still = b in layer.index_bottoms and not node.bottom_names[b].startswith("scale")
            move = np.copy if not nudge else nudge.rois if rois else np.copy if still else nudge.values
            blob.reshape(*given.shape)
            blob.data[...] = move(given)
        if nudge:
            for blob in layer.blobs:
                blob.data[...] = nudge.values(blob.data)
        seed(i)
        with nudge.scale(layer) if nudge else nullcontext():
            layer.forward_pass(node.bottoms, node.tops)
        return node

    def _moved(self, i: int) -> float:
        """How far a step of float32 in what a layer reads moves its tops, in float64 or in float32; the most of 3 tries."""
        moved = 0.0
        for net in (self.double, self.rough):
            start = [blob.data.copy() for blob in self._give(net, i, None).tops]
            for draw in range(3):
                tops = self._give(net, i, Nudge(draw)).tops
                moved = max([moved, *(far(blob.data, values) for blob, values in zip(tops, start, strict=True))])
        self._give(self.double, i, None)
        return moved

    def _judge(self, way: str, i: int, distance: float, moved: float) -> None:
        layer = self.single.layers[i]
        if distance > 100 * moved:
            apart = f"float32 and float64 {distance:.3g} apart (a step of float32 moves it by {moved:.3g})"
            raise FoundError(f"{way} of {layer.name}: {apart}")
        self.unsteady[f"{way} of {layer.type}"] += 1

    def _before_backward(self, i: int) -> None:
        one, other = self._nodes(i)
        _copy(one.bottoms, other.bottoms)
        _copy(one.tops, other.tops)
        for mine, theirs in zip([*one.tops, *one.layer.blobs], [*other.tops, *other.layer.blobs], strict=True):
            theirs.diff[...] = mine.diff
        self._diffs = [blob.diff.copy() for blob in other.tops]
        self._weights = [blob.diff.copy() for blob in other.layer.blobs]

    def _after_backward(self, i: int) -> None:
        one = self.single.nodes[i]
        if not one.needs_backward:
            return
        wanted = self._backward(self.double, i)
        self._check_finite(i, wanted)
        got = _gradients(one)
        for mine, want in zip(got, wanted, strict=True):
            if not (distance := far(mine, want)) <= SINGLE:
                self._judge("backward", i, distance, self._backward_moved(i))
        self.compared += 1

    def _check_finite(self, i: int, gradients: Sequence[Array]) -> None:
        """A gradient that is not finite in both types does not count as agreeing, unless what the layer read was not either."""
        read = [*self._given[i], *self._diffs, *self._weights]
        if _finite(read) and not _finite(gradients):
            raise FoundError(f"backward of {self.single.layers[i].name} in float64: not finite")

    def _backward(self, net: Net, i: int, nudge: Nudge | None = None) -> list[Array]:
        node = net.nodes[i]
        with nudge.scale(node.layer) if nudge else nullcontext():
            node.layer.backward_pass(node.tops, self.single.nodes[i].bottom_needs, node.bottoms)
        return _gradients(node)

    def _backward_moved(self, i: int) -> float:
        """As _moved, of the gradients, where the tops' diffs move too."""
        moved = 0.0
        for net in (self.double, self.rough):
            start = self._again(net, i, None)
            for draw in range(3):
                gradients = self._again(net, i, Nudge(draw))
                moved = max([moved, *(far(values, want) for values, want in zip(gradients, start, strict=True))])
        return moved

    def _again(self, net: Net, i: int, nudge: Nudge | None) -> list[Array]:
        node = self._give(net, i, nudge)
        for blob, diff in zip(node.tops, self._diffs, strict=True):
            blob.diff[...] = nudge.values(diff) if nudge else diff
        for blob, diff in zip(node.layer.blobs, self._weights, strict=True):
            blob.diff[...] = diff
        return self._backward(net, i, nudge)


def _copy(mine: Sequence[Blob], theirs: Sequence[Blob]) -> None:
    for one, other in zip(mine, theirs, strict=True):
        other.reshape(*one.shape)
        other.data[...] = one.data


def _finite(arrays: Sequence[Array]) -> bool:
    return all(np.isfinite(array).all() for array in arrays)


def _gradients(node: Node) -> list[Array]:
    """What a layer's backward wrote."""
    bottoms = [b.diff.copy() for b, needs in zip(node.bottoms, node.bottom_needs, strict=True) if needs]
    return bottoms + [node.layer.blobs[i].diff.copy() for i in learnt(node.layer)]


def check_beside(random: RandomNet) -> Beside:
    """Compare every layer. Raises FoundError, TooLargeError."""
    return Beside(random)
