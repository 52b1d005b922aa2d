"""Layers that select items of a batch, or channels, by index or by a selector."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.launches import launch_add, launch_take
from minicaffe.errors import LayerError
from minicaffe.formats.forks import NetFork
from minicaffe.layer import AsManyAsBottoms, Costs, Layer
from minicaffe.layers.proposal.dynamic_tops import DynamicTops
from minicaffe.layers.shape.rearranged import Tables, on_device
from minicaffe.proto import caffe_pb2


class BatchReindex(Layer):
    """y[m] = x[index[m]].

    The items of a batch in another order, some left out, some repeated. dx[n] = the sum of dy[m] over the m with index[m] = n.
    Source: Caffe's batch_reindex_layer.cpp.

    bottom: x (N, ...); index (M), whole numbers in [0, N), as floats. top: y (M, ...).
    Raises LayerError when x is a scalar, index is not one-dimensional, or one of its numbers is no index of x.
    """

    type = "BatchReindex"
    num_bottom = 2
    num_top = 1
    index_bottoms = (1,)
    weight_names = ()
    copies = (0, 3.5)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, index = bottom[0].shape, bottom[1].shape
        if not x:
            raise self.error("the first bottom is a scalar, which has no items", "bottom[0]")
        if len(index) != 1:
            raise self.error(f"the index must be one-dimensional, its shape is {index}", "bottom[1]")
        top[0].reshape(*index, *x[1:])

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        index = self._index(bottom)
        if len(index):
            # _index has checked the indices; mode "raise" would buffer out.
            np.take(bottom[0].data, index, axis=0, out=top[0].data, mode="clip")

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        launch_take(self, bottom[1], "bottom[1]", bottom[0].device_data("read"), bottom[0].shape[0], top[0])

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            dx = bottom[0].diff
            dx[...] = 0
            add_rows(top[0].diff, self._index(bottom), dx)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            bottom[0].zero_diff()
            launch_add(self, bottom[1], top[0], bottom[0].shape[0], bottom[0].device_diff("update"))

    def _index(self, bottom: Sequence[Blob]) -> NDArray[np.intp]:
        return whole_numbers(self, bottom[1].data, bottom[0].shape[0], "bottom[1]")


def whole_numbers(
    layer: Layer, values: Array, end: int, field: str, error: Callable[[float], LayerError] | None = None
) -> NDArray[np.intp]:
    """Return values as integers.

    Raises LayerError with the first one that is not a whole number in [0, end). error: makes the LayerError from that number.
    """
    with np.errstate(invalid="ignore"):
        index = values.astype(np.int32)  # values out of range become negative, and as unsigned numbers huge
    if values.size and (index.view(np.uint32).max() >= end or not (index.astype(values.dtype) == values).all()):
        good = (values >= 0) & (values < end) & (np.floor(values) == values)
        wrong = float(values[~good][0])
        raise error(wrong) if error else layer.error(f"{wrong:g} is not a whole number in [0, {end})", field)
    return index.astype(np.intp)


def add_rows(rows: Array, index: NDArray[np.intp], total: Array) -> None:
    """Add rows[m] to total[index[m]] for every m, equal indices first.

    rows (M, ...), index (M), total (N, ...).
    """
    if not len(index):
        return
    order = np.argsort(index, kind="stable")  # groups equal indices, in order; add.at would take them one by one
    starts = np.flatnonzero(np.diff(index[order], prepend=-1))  # no index is -1, so the first one also starts a run
    total[index[order[starts]]] += np.add.reduceat(rows[order], starts, axis=0)


class Filter(DynamicTops):
    """y[i] = the items of x[i] whose selector is not 0.

    Source: Caffe's filter_layer.cpp.

    bottom: any number of x[i] (N, ...), then the selector (N), which may have more axes of length 1. top: y[i] (M, ...), M
    being how many numbers of the selector are not 0. The tops have their true shapes from the first forward on; before
    that, they are given all N items.
    Raises LayerError when the selector has more than N numbers or a bottom another number of items, or the tops are not
    one fewer than the bottoms.

    With channel-pruning's filter_param it is another layer, ChannelFilter.

    ChannelFilter is Filter with channel-pruning's filter_param: the channels for which the stored selector is not 0.

        y = x's channels c with selector[c] != 0, in order        dx = dy in those channels, 0 in the others

    Source: He et al., Channel Pruning (arXiv:1707.06168); ethanhe42/caffe-pro's filter_layer.cpp and .cu, of which the code for
    the CPU is not written.
    """

    type = "Filter"
    num_bottom = (2, None)
    num_top = (1, None)
    param_block = ("filter_param",)
    weight_names = ()

    @classmethod
    def resolve_class(cls, param: caffe_pb2.LayerParameter, fork: NetFork) -> builtins.type[Layer]:
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
        self._selected = np.flatnonzero(selector.read_data())  # read in reshape, which precedes each forward
        # As Caffe's first_reshape_: in the first reshape, the selector is not computed yet.
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
        """Return the address of the kept items' numbers, then of each item's position among them, -1 for none."""
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
        places = self._device_table(bottom[-1].count) + 4 * len(self._selected)  # after the first table, of int32
        for x, y, wanted in zip(bottom, top, propagate_down):
            if wanted:
                dy, dx = y.device_diff("read"), x.device_diff("write")
                self.launch("filter.filter_backward", x.count, x.count, math.prod(x.shape[1:]), places, dy, dx)


class ChannelFilter(Layer):
    """The channels of each bottom, on filter_param.axis (default 1), whose selector is not 0.

    bottom[i]: x (N, C, ...), of one length on the axis. top[i]: y (N, num_output, ...). blob: selector (C,), 1 unless stored;
    it gets no gradient. Raises LayerError for other shapes, num_output 0, and in forward for a selector that keeps another
    number of channels than num_output, as the one that is not stored does unless num_output is C.
    """

    type = "Filter"
    num_bottom = (1, None)
    num_top = AsManyAsBottoms()
    param_block = ("filter_param",)
    weight_names = ("selector",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.filter_param
        if param.num_output < 1:
            raise self.error(f"num_output must be > 0, got {param.num_output}", "filter_param.num_output")
        self.axis = self.axis_of(param.axis, bottom[0], "filter_param.axis")
        self.learn([(bottom[0].shape[self.axis],)], [caffe_pb2.FillerParameter(value=1)])

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        channels = self.blobs[0].count
        for i, (x, y) in enumerate(zip(bottom, top, strict=True)):
            if x.shape[self.axis : self.axis + 1] != (channels,):
                wrong = f"bottom {i} of shape {x.shape} must have the selector's {channels} channels on axis {self.axis}"
                raise self.error(wrong, f"bottom[{i}]")
            y.reshape(*x.shape[: self.axis], self.param.filter_param.num_output, *x.shape[self.axis + 1 :])

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=0)

    def selected(self) -> NDArray[np.intp]:
        """Return the selected channels. Raises LayerError if they are not num_output."""
        kept, wanted = np.flatnonzero(self.blobs[0].read_data()), self.param.filter_param.num_output
        if len(kept) != wanted:
            wrong = f"its selector keeps {len(kept)} channels, num_output is {wanted}: it needs the stored weights"
            raise self.error(wrong, "filter_param.num_output")
        return kept

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        kept = self.selected()
        for x, y in zip(bottom, top, strict=True):
            np.take(x.data, kept, axis=self.axis, out=y.data)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        kept = self.selected()
        for x, y, wanted in zip(bottom, top, propagate_down, strict=True):
            if wanted:
                x.zero_diff()
                x.diff[(slice(None),) * self.axis + (kept,)] = y.diff


class Gather(Layer):
    """The bottoms as tops: each top shares its bottom's memory (data and diff).

    In temporal segment networks' Caffe it joins the bottoms of all MPI ranks. In one process the tops are the bottoms.

        y_i = x_i        dx_i = dy_i

    The fork joins the batches of all ranks before the layers after it, and in backward multiplies each rank's part of the diff
    by the number of ranks. Here each rank keeps its own batch: the mean of the ranks' gradients, which training on MPI takes,
    is the same wherever the loss is a mean over the batch. Source: PSPNet's gather_layer.cpp (Wang et al., 2016), the same
    fork's.

    bottom[i]: any shapes. top[i]: x[i]. Raises LayerError when there are not as many tops as bottoms.
    """

    type = "Gather"
    num_bottom = (1, None)
    num_top = AsManyAsBottoms()
    weight_names = ()
    copies = (0, 0)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for x, y in zip(bottom, top, strict=True):
            y.reshape(x.shape)
            y.share_data(x)  # in each reshape, because the bottom may have new memory
            y.share_diff(x)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Do nothing: the tops share the bottoms' memory."""

    forward_gpu = forward_cpu


class Scatter(Gather):
    """The bottoms as tops: each top shares its bottom's memory (data and diff).

    In temporal segment networks' Caffe it deals batches out to all MPI ranks. In one process the tops are the bottoms.

    It undoes Gather, and here works like it. Source: PSPNet's scatter_layer.cpp (Wang et al., 2016), the same fork's.

    bottom[i]: any shapes. top[i]: x[i]. Raises LayerError when there are not as many tops as bottoms.
    """

    type = "Scatter"
