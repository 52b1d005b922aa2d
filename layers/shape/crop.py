"""Crop: the part of one bottom that has another's size. Source: Caffe's crop_layer.hpp; longjon's for automatic offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.coordinates import Map, alignment, offsets_of
from minicaffe.errors import AlignmentError, Error, ways
from minicaffe.forked import Forked
from minicaffe.formats.fork_kinds import Kind
from minicaffe.node import Node

from .rearranged import Tables, on_device, steps_of

BVLC, LONGJON = "BVLC Caffe", "longjon's Caffe"
"""Whose a layer is."""


class DisconnectedError(AlignmentError):
    """Bottoms that are not made from one blob."""


class Crop(Forked):
    """y = x, with every axis from `axis` (default 2) on cut to the second bottom's length, starting at offset.

    offset: none (0), one for all cut axes, or one for each. The second bottom gives lengths only; its gradient is 0.
    Without crop_param the layer is BVLC's, with offset 0, or longjon's (FCN, HED), with the offsets that align x with the
    reference. settle_crops decides, for all layers of a net alike, and puts the offsets into crop_param.
    bottom: x (N, C, H, W), reference (..., h, w) with as many axes. top: y (N, C, h, w) by default.
    Raises LayerError when axis is out of range, the numbers of axes or offsets do not match, the cut leads past x,
    and in a net of longjon's where no offsets align the two.
    """

    type = "Crop"
    num_bottom = 2
    num_top = 1
    index_bottoms = (1,)
    param_block = ("crop_param",)
    weight_names = ()
    copies = (0, 0)
    kinds = (
        Kind(BVLC, ("bvlc",), "crop_param, else offset 0"),
        Kind(LONGJON, ("longjon", "hed", "crfrnn"), "offsets that align the bottoms"),
    )

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._tables: Tables = {}
        if self.param.HasField("crop_param"):
            self.choose(BVLC, "crop_param")
        else:
            self.choose_by_fork()

    def align(self, found: Map | None, bottom: Sequence[Blob]) -> None:
        """Put the offsets that longjon's Caffe takes into crop_param. found: the map between the bottoms, None if they are not
        made from one blob. Raises Error where that Caffe stops."""
        if found is None:
            raise DisconnectedError("its bottoms are not made from one blob")
        if found[0] not in (None, 1):
            raise AlignmentError(f"cannot crop: the bottoms are aligned from axis {found[0] + 1} on")
        offsets = offsets_of(found)
        x, reference = bottom[0].shape, bottom[1].shape
        for offset, length, most in zip(np.broadcast_to(offsets, len(x[2:])), reference[2:], x[2:], strict=True):
            if offset + length > most:
                raise AlignmentError(f"cannot crop: offset {offset} and length {length} lead past length {most}")
        self.param.crop_param.offset.extend(offsets)

    def coordinates(self) -> Map | None:
        param = self.param.crop_param
        return param.axis - 1, 1, -np.array(list(param.offset) or [0])

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, reference = bottom[0].shape, bottom[1].shape
        if len(x) != len(reference):
            raise self.error(f"bottom 0 has shape {x}, bottom 1 {reference}: the numbers of axes differ", "bottom[1]")
        axis = self.axis_of(self.param.crop_param.axis, bottom[0], "crop_param.axis")
        offsets = self.offsets(len(x) - axis)
        for i, offset in enumerate(offsets, axis):
            if offset + reference[i] > x[i]:
                raise self.error(
                    f"offset {offset} and length {reference[i]} lead past axis {i} of shape {x}, length {x[i]}", "crop_param"
                )
        cuts = [slice(o, o + length) for o, length in zip(offsets, reference[axis:], strict=True)]
        self._cut = (*(slice(None),) * axis, *cuts)
        top[0].reshape(*x[:axis], *reference[axis:])

    def offsets(self, axes: int) -> list[int]:
        """One offset for each of the cut axes."""
        given = list(self.param.crop_param.offset) or [0]
        if len(given) not in (1, axes):
            raise self.error(
                f"{len(given)} offset given for {axes} cut axes: give none, one, or one for each", "crop_param.offset"
            )
        return given if len(given) == axes else given * axes

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[...] = bottom[0].data[self._cut]

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = bottom[0].device_data("read") + self._start(bottom[0]), top[0].device_data("write")
        self.launch("permute.gather", top[0].count, top[0].count, *self._axes(bottom[0], top[0]), x, y)

    def _start(self, x: Blob) -> int:
        """Where in x the cut begins, in bytes."""
        return sum((cut.start or 0) * step for cut, step in zip(self._cut, steps_of(x.shape))) * x.dtype.itemsize

    def _axes(self, x: Blob, y: Blob) -> tuple[int, int]:
        """How many axes there are, and the address of y's lengths and x's steps."""
        return len(y.shape), on_device(self._tables, [*y.shape, *steps_of(x.shape)])

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            bottom[0].diff[...] = 0
            bottom[0].diff[self._cut] = top[0].diff

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            bottom[0].zero_diff()
            dy, dx = top[0].device_diff("read"), bottom[0].device_diff("update") + self._start(bottom[0])
            self.launch("permute.scatter", top[0].count, top[0].count, *self._axes(bottom[0], top[0]), dy, dx)


def settle_crops(nodes: Sequence[Node]) -> None:
    """Make a net's Crops without crop_param all longjon's, or all BVLC's. Without a fork they are longjon's if its Caffe has
    offsets for every one, and no layer has BVLC's field. Raises LayerError in a net of longjon's whose bottoms do not align."""
    crops = [(i, node.layer) for i, node in enumerate(nodes) if isinstance(node.layer, Crop)]
    bare = {i: layer for i, layer in crops if not layer.param.HasField("crop_param")}
    if not bare:
        return
    choice = next(iter(bare.values())).choice  # by the net's fork: one for all of them
    others = [layer.name for i, layer in crops if i not in bare]
    if choice:
        bvlcs = choice.why if choice.whose == BVLC else ""
    else:
        bvlcs = f'layer "{others[0]}" has crop_param' if others else ""
    bvlcs = bvlcs or _align_all(nodes, bare)
    for i, layer in bare.items():
        if bvlcs:
            layer.param.crop_param.Clear()
            layer.param.crop_param.SetInParent()  # a net made of these parameters, or of some of them, must not choose again
        if not layer.choice:
            layer.choose(BVLC if bvlcs else LONGJON, bvlcs or "whole offsets align the bottoms of every Crop")
        layer.reshape_pass(nodes[i].bottoms, nodes[i].tops)


def _align_all(nodes: Sequence[Node], crops: Mapping[int, Crop]) -> str:
    """Align the Crops, by the indices of their nodes, as longjon's Caffe does; return why they are BVLC's, "" if nothing says
    so. Raises LayerError in a net of longjon's whose bottoms do not align."""
    for i, layer in crops.items():
        try:
            layer.align(alignment(nodes[:i], *nodes[i].bottom_names[:2]), nodes[i].bottoms)
        except Error as error:
            reason = f"no crop_param is given, and {error}"
            if layer.choice:
                fork = ways("--fork bvlc") or 'fork="bvlc"'
                raise layer.error(f"{reason}; give one, {{ offset: 0 }} for no offset, or {fork}", "bottom") from error
            if not isinstance(error, DisconnectedError):
                layer.warn(
                    f"{reason}: longjon's Caffe refuses that, so all of the net's Crops are BVLC's, with offset 0", "bottom"
                )
            return f'longjon\'s Caffe refuses layer "{layer.name}"'
    return ""
