"""Filter: only the items of a batch that a selector names: y = x[selector != 0]. Source: Caffe's filter_layer.cpp.

With channel-pruning's filter_param it is another layer, channel_filter.py.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.formats.fork_kinds import NetFork
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

from .channel_filter import ChannelFilter
from .rearranged import Tables, on_device


class Filter(Layer):
    """y[i] = x[i] without the items n for which selector[n] is 0.

    bottom: any number of x[i] (N, ...), then the selector (N), which may have more axes of length 1. top: y[i] (M, ...), M
    being how many numbers of the selector are not 0. The tops have their true shapes from the first forward on; before
    that, they are given all N items.
    Raises LayerError when the selector has more than N numbers or a bottom another number of items, or the tops are not
    one fewer than the bottoms.
    """

    type = "Filter"
    num_bottom = (2, None)
    num_top = (1, None)
    param_block = ("filter_param",)
    weight_names = ()
    found_axis = 0

    @classmethod
    def serving(cls, param: caffe_pb2.LayerParameter, fork: NetFork) -> builtins.type[Layer]:
        return ChannelFilter if param.HasField("filter_param") else cls

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(top) != len(bottom) - 1:
            raise self.error(
                f"takes one top for every bottom but the last, the selector; got {len(bottom)} bottoms and {len(top)} tops",
                "top",
            )
        self.index_bottoms = (len(bottom) - 1,)
        self._selector_known = False
        self._tables: Tables = {}

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        *data, selector = bottom
        if not selector.shape or selector.count != selector.shape[0]:
            raise self.error(
                f"the selector must have one number for each item, its shape is {selector.shape}", f"bottom[{len(data)}]"
            )
        for i, x in enumerate(data):
            if x.shape[:1] != selector.shape[:1]:
                raise self.error(
                    f"bottom {i} of shape {x.shape} must have as many items as the selector, {selector.count}", f"bottom[{i}]"
                )
        self._selected = np.flatnonzero(selector.read_data())  # at reshape, which comes before each forward
        # Caffe's first_reshape_: the selector is not computed yet
        items = len(self._selected) if self._selector_known else selector.count
        self._selector_known = True
        for x, y in zip(data, top, strict=True):
            y.reshape(items, *x.shape[1:])

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for x, y in zip(bottom, top):
            y.data[...] = x.data[self._selected]

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        kept = self._device_table(bottom[-1].count)
        for x, y in zip(bottom, top):
            source, target = x.device_data("read"), y.device_data("write")
            self.launch("filter.filter", y.count, y.count, math.prod(x.shape[1:]), kept, source, target)

    def _device_table(self, items: int) -> int:
        """The address of the kept items' numbers, then of every item's place among them, -1 for none."""
        places = np.full(items, -1)
        places[self._selected] = np.arange(len(self._selected))
        return on_device(self._tables, np.concatenate([self._selected, places]))

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        for x, y, wanted in zip(bottom, top, propagate_down):
            if wanted:
                dx = x.diff
                dx[...] = 0
                dx[self._selected] = y.diff

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        places = self._device_table(bottom[-1].count) + 4 * len(self._selected)  # past the first table, of int32
        for x, y, wanted in zip(bottom, top, propagate_down):
            if wanted:
                dy, dx = y.device_diff("read"), x.device_diff("write")
                self.launch("filter.filter_backward", x.count, x.count, math.prod(x.shape[1:]), places, dy, dx)
