"""Build one layer on given arrays, without a net."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from google.protobuf import text_format
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.formats.forks import fork_of_net
from minicaffe.layers import create
from minicaffe.mode import TEST, Phase
from minicaffe.proto import caffe_pb2
from minicaffe.training.gradient_check import GradientReport, check_layer_gradient


class LayerCase:
    """A layer connected to bottoms that hold the given arrays (float64 unless dtype says otherwise).

    text: the inside of a `layer { ... }` block; name defaults to "layer", bottoms and tops need not be named.
    With in_place=True the top is the bottom's blob.
    """

    def __init__(
        self,
        text: str,
        *bottoms: NDArray[Any] | Sequence[Any],
        tops: int = 1,
        phase: Phase = TEST,
        dtype: Any = np.float64,
        in_place: bool = False,
        fork: str = "",
    ) -> None:
        param = caffe_pb2.LayerParameter(name="layer")
        text_format.Merge(text, param)
        self.bottom = [Blob(np.shape(b), dtype) for b in bottoms]
        for blob, array in zip(self.bottom, bottoms, strict=True):
            blob.data[...] = array
        self.top = [self.bottom[0]] if in_place else [Blob((), dtype) for _ in range(tops)]
        self.layer = create(param, phase=phase, dtype=dtype, fork=fork_of_net(fork, ()))
        self.layer.connect(self.bottom, self.top)

    def forward(self) -> list[NDArray[Any]]:
        """Run forward; copies of the tops' data."""
        self.layer.forward_pass(self.bottom, self.top)
        return [t.data.copy() for t in self.top]

    def backward(self, *top_diffs: NDArray[Any], propagate_down: Sequence[bool] | None = None) -> list[NDArray[Any]]:
        """Put top_diffs on the tops (none given: what is there stays) and run backward; copies of the bottoms' diffs."""
        for blob, diff in zip(self.top, top_diffs, strict=False):
            blob.diff[...] = diff
        self.layer.backward_pass(self.top, list(propagate_down or [True] * len(self.bottom)), self.bottom)
        return [b.diff.copy() for b in self.bottom]

    def check_gradient(self, **options: Any) -> GradientReport:
        """minicaffe.training.gradient_check.check_layer_gradient on this layer and its bottoms."""
        return check_layer_gradient(self.layer, self.bottom, self.top, **options)


def check_a_second_reshape(text: str, computed: Callable[[LayerCase], object]) -> None:
    """Check that a reshape to another size computes anew, and that one to the same size keeps what was computed."""

    def maps(size: Sequence[int]) -> NDArray[Any]:
        return np.random.default_rng(sum(size)).normal(size=size)

    sizes = [(1, 2, 3, 4), (1, 2, 5, 3), (1, 2, 5, 3)]
    case = LayerCase(text, maps(sizes[0]))
    for size in sizes:
        case.bottom[0].reshape(size)
        case.bottom[0].data[...] = maps(size)
        np.testing.assert_array_equal(case.forward()[0], LayerCase(text, maps(size)).forward()[0])
    kept = computed(case)
    case.forward()
    assert computed(case) is kept
