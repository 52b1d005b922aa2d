"""The element to explain: indices checked against the blobs, with errors that give the range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from numbers import Integral

from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.layers.proposal.ohem import BoxAnnotatorOHEM
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.layers.proposal.proposal_target import ProposalTarget
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.layers.ssd.detection_output import DetectionOutput

from .explanation import Case
from .terms import Index

ROWS: dict[type[Layer], tuple[str, int]] = {
    Proposal: ("roi", 0),
    ProposalTarget: ("roi", 0),
    BoxAnnotatorOHEM: ("roi", 0),
    DetectionOutput: ("index", 2),
}
"""What a row of the tops of a layer of boxes is asked for by, and the axis of the rows."""
PLURALS = {"roi": "rois", "index": "indices"}


@dataclass(frozen=True)
class Asked:
    """The ways to name an element.

    at: an index. For an ROI layer: roi, channel and bin, in backward item, channel and cell. For a layer of boxes: roi or
    index, for Proposal also anchor, its row and column of the map and its number there. prefix: put before these names in
    errors, "--" for a command's options.
    """

    at: Sequence[int] | None = None
    roi: int | None = None
    channel: int | None = None
    bin: Sequence[int] | None = None
    item: int | None = None
    cell: Sequence[int] | None = None
    index: int | None = None
    anchor: Sequence[int] | None = None
    prefix: str = ""

    def of_anchor(self, case: Case[Proposal]) -> Index:
        """Return the anchor's row, column and number. Raises Error."""
        if any(value is not None for name, value in vars(self).items() if name not in ("anchor", "prefix")):
            raise case.error(f"give {self.prefix}anchor alone")
        shape = (*case.bottoms[0].shape[2:], len(case.layer.anchors))
        return _checked(case, f"{self.prefix}anchor", self.anchor or (), "the anchors (row, column, number)", shape)

    def element(self, case: Case[Layer], backward: bool) -> Index:
        """Return the index of the element to explain, into the top or in backward the bottom. Raises Error."""
        number = case.number
        blob, array = (
            (case.bottom_names[number], case.bottoms[number]) if backward else (case.top_names[number], case.tops[number])
        )
        self._check_names(case, backward)
        # Checked before --roi: without rois no number is valid.
        if isinstance(case.layer, RoiLayer) and not array.shape[0] and not backward:
            raise case.error("there are no rois: nothing to explain")
        if self.at is not None:
            return _checked(case, f"{self.prefix}at", self.at, blob, array.shape)
        if isinstance(case.layer, RoiLayer):
            return self._of_bin(case, blob, array.shape, backward)
        if not array.shape:
            return ()
        if (name := row_name(case.layer)) and getattr(self, name) is not None and not backward:
            return self._of_row(case, name, blob, array.shape)
        ends = f"{_zeros(array.shape)} to {_last(case, blob, array.shape)}"
        row = f"{self.prefix}{name} or " * bool(name and not backward)
        raise case.error(f"give {row}{self.prefix}at, an index into {blob} of shape {_text(array.shape)}: {ends}")

    def _of_row(self, case: Case[Layer], name: str, blob: str, shape: Index) -> Index:
        """Return the index of the first number in a row of boxes."""
        axis, value = _row(case.layer)[1], getattr(self, name)
        if not shape[axis]:
            raise case.error(f"{blob} of shape {_text(shape)} is empty: nothing to explain")
        if not 0 <= value < shape[axis]:
            raise case.error(f"{self.prefix}{name} {value} is out of range: {blob} has {PLURALS[name]} 0 to {shape[axis] - 1}")
        return tuple(value if i == axis else 0 for i in range(len(shape)))

    def of_weight(self, case: Case[Layer], shape: Index) -> Index:
        """Return the index into a learnable blob of this shape. Raises Error."""
        blob = f"{case.layer.name}.{case.number}"
        for name, value in vars(self).items():
            if value is not None and name not in ("at", "prefix"):
                raise case.error(f"{self.prefix}{name} names no weight; give {self.prefix}at, an index into {blob}")
        if self.at is None and shape:
            ends = f"{_zeros(shape)} to {_last(case, blob, shape)}"
            raise case.error(f"give {self.prefix}at, an index into {blob} of shape {_text(shape)}: {ends}")
        return _checked(case, f"{self.prefix}at", self.at or (), blob, shape)

    def _check_names(self, case: Case[Layer], backward: bool) -> None:
        """Raise Error for names that do not apply to the layer and the direction."""
        p, is_roi_layer = self.prefix, isinstance(case.layer, RoiLayer)
        wanted = ["channel", "cell"] if backward else ["roi", "channel", "bin"]
        known = {"at", "item", *wanted} if backward else {"at", *wanted}
        given = {name for name, value in vars(self).items() if value is not None and name != "prefix"}
        row = {row_name(case.layer)} if not backward else set()
        for name in sorted(given - (known if is_roi_layer else {"at", *row})):
            if name in ("index", "anchor"):
                raise case.error(f"{p}{name} is only for {'Proposal' if name == 'anchor' else 'DetectionOutput'}; give {p}at")
            if not is_roi_layer:
                raise case.error(f"{p}{name} is only for ROI layers; give {p}at for a {case.layer.type} layer")
            *first, last = (p + name for name in wanted)
            way = "forward" if backward else "backward"
            raise case.error(f"{p}{name} is only for {way}; give {', '.join(first)} and {last}, or {p}at")
        if "at" in given and len(given) > 1:
            others = " and ".join(f"{p}{name}" for name in sorted(given - {"at"}))
            raise case.error(f"give {p}at or {others}, not both")

    def _of_bin(self, case: Case[Layer], blob: str, shape: Index, backward: bool) -> Index:
        """Return the index that roi, channel and bin name, or in backward item, channel and cell."""
        p = self.prefix
        first_name, last_name = ("item", "cell") if backward else ("roi", "bin")
        # item: usually one image, so 0 by default
        first, last = (self.item or 0, self.cell) if backward else (self.roi, self.bin)
        if first is None or self.channel is None or last is None:
            start = "" if backward else f"{p}roi (0 to {shape[0] - 1}), "
            ranges = f"{p}channel (0 to {shape[1] - 1}) and {p}{last_name} (0,0 to {shape[2] - 1},{shape[3] - 1})"
            raise case.error(f"give {start}{ranges}" + f"; {p}item is 0 by default (0 to {shape[0] - 1})" * backward)
        for name, value, size in ((first_name, first, shape[0]), ("channel", self.channel, shape[1])):
            if not 0 <= value < size:
                found = f"{blob} of shape {_text(shape)} has {name}s 0 to {size - 1}"
                raise case.error(f"{p}{name} {value} is out of range: {found}")
        return (first, self.channel, *_checked(case, p + last_name, last, blob, shape[2:]))


def row_name(layer: Layer) -> str:
    """Return the name that selects a row of the layer's tops, "roi" or "index"; "" if rows are not boxes."""
    return _row(layer)[0]


def _row(layer: Layer) -> tuple[str, int]:
    return next((row for kind, row in ROWS.items() if isinstance(layer, kind)), ("", 0))


def weight_number(layer: Layer, weight: int | str, prefix: str = "") -> int:
    """Return the number of a learnable blob given as 1, "1", "bias" or "conv1.1" of a layer conv1. Raises Error."""
    own = str(weight).removeprefix(f"{layer.name}.")
    names = list(layer.weight_names or ())[: len(layer.blobs)]
    if own in names:
        return names.index(own)
    if own.isdecimal() and int(own) < len(layer.blobs):
        return int(own)
    known = ", ".join(
        f"{layer.name}.{i}" + f" ({name})" * bool(name) for i, (name, _) in enumerate(zip_longest(names, layer.blobs))
    )
    head = f'{layer.type} layer "{layer.name}": {prefix}weight {weight}'
    raise Error(f"{head}: it has {known}" if known else f"{head}: it has no learnable blobs")


def _checked(case: Case[Layer], what: str, index: Sequence[int], blob: str, shape: Index) -> Index:
    """Return the index as ints. Raises Error unless `shape` has such an element."""
    text = ",".join(map(str, index))
    if len(index) != len(shape):
        raise case.error(f"{what} {text} has {len(index)} numbers, but {len(shape)} are needed for {blob} ({_text(shape)})")
    if not all(isinstance(i, Integral) for i in index):
        raise case.error(f"{what} {text}: indices are whole numbers")
    if not all(0 <= i < n for i, n in zip(index, shape)):
        raise case.error(f"{what} {text} is out of range: {blob} has {_zeros(shape)} to {_last(case, blob, shape)}")
    return tuple(int(i) for i in index)


def _last(case: Case[Layer], blob: str, shape: Index) -> str:
    if 0 in shape:
        raise case.error(f"{blob} of shape {_text(shape)} is empty: nothing to explain")
    return ",".join(str(n - 1) for n in shape)


def _zeros(shape: Index) -> str:
    return ",".join("0" for _ in shape)


def _text(shape: Index) -> str:
    return "x".join(map(str, shape)) or "scalar"
