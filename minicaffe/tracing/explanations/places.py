"""Which element is asked for: indices checked against the blobs, with errors that say the range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .case import Case
from .terms import Index


@dataclass(frozen=True)
class Asked:
    """The ways to name an element: at; of a ROI layer roi, channel and bin, in backward item, channel and cell. prefix: what
    errors put before these names, "--" where they are a command's options."""

    at: Sequence[int] | None = None
    roi: int | None = None
    channel: int | None = None
    bin: Sequence[int] | None = None
    item: int | None = None
    cell: Sequence[int] | None = None
    prefix: str = ""

    def index(self, case: Case, backward: bool) -> Index:
        """The index into the top (in backward: the bottom) that is explained. Raises Error."""
        array = (case.bottoms if backward else case.tops)[case.number]
        names = case.bottom_names if backward else case.top_names
        self._check_kind(case, backward)
        if not case.layer.is_roi_layer:
            return self._plain(case, names[case.number], array.shape)
        if not array.shape[0] and not backward:
            raise case.error("there are no rois: nothing to explain")
        return self._of_bin(case, array.shape, backward)

    def _check_kind(self, case: Case, backward: bool) -> None:
        """Only what the layer and the direction know can be given."""
        p = self.prefix
        roi_layer = case.layer.is_roi_layer
        known = {"at"} | ({"channel", "cell", "item"} if backward else {"roi", "channel", "bin"}) if roi_layer else {"at"}
        given = {name for name, value in vars(self).items() if value is not None and name != "prefix"}
        for name in sorted(given - known):
            if not roi_layer:
                raise case.error(f"{p}{name} is for ROI layers; name the element of a {case.layer.type} layer by {p}at")
            way = "forward" if backward else "backward"
            raise case.error(f"{p}{name} is for {way}; give {self._wanted(backward)}, or {p}at")
        if "at" in given and len(given) > 1:
            others = " and ".join(f"{p}{name}" for name in sorted(given - {"at"}))
            raise case.error(f"{p}at and {others} are both given: give one way to name the element")

    def _wanted(self, backward: bool) -> str:
        p = self.prefix
        return f"{p}channel and {p}cell" if backward else f"{p}roi, {p}channel and {p}bin"

    def _plain(self, case: Case, name: str, shape: Index) -> Index:
        if self.at is None:
            if not shape:
                return ()
            ends = f"{_zeros(shape)} to {_last(case, name, shape)}"
            raise case.error(f"give {self.prefix}at, an index into {name} of shape {_text(shape)}: {ends}")
        return _checked(case, f"{self.prefix}at", self.at, name, shape)

    def _of_bin(self, case: Case, shape: Index, backward: bool) -> Index:
        """roi, channel and bin, or image, channel and cell."""
        p = self.prefix
        if self.at is not None:
            return _checked(case, f"{self.prefix}at", self.at, (case.bottom_names if backward else case.top_names)[0], shape)
        first, last = (self.item, self.cell) if backward else (self.roi, self.bin)
        if backward and first is None:
            first = 0
        if first is None or self.channel is None or last is None:
            named = f"{p}cell" if backward else f"{p}bin"
            start = "" if backward else f"{p}roi (0 to {shape[0] - 1}), "
            ranges = f"{p}channel (0 to {shape[1] - 1}) and {named} (0,0 to {shape[2] - 1},{shape[3] - 1})"
            raise case.error(f"give {start}{ranges}" + f"; {p}item is 0 unless given (0 to {shape[0] - 1})" * backward)
        blob = (case.bottom_names if backward else case.top_names)[0]
        for name, value, size in (("item" if backward else "roi", first, shape[0]), ("channel", self.channel, shape[1])):
            if not 0 <= value < size:
                raise case.error(
                    f"{p}{name} {value} is out of range: {blob} of shape {_text(shape)} has {name}s 0 to {size - 1}"
                )
        pair = _checked(case, f"{p}cell" if backward else f"{p}bin", last, blob, shape[2:])
        return (first, self.channel, *pair)


def _checked(case: Case, what: str, index: Sequence[int], blob: str, shape: Index) -> Index:
    """index, which must have an element of shape. Raises Error."""
    text = ",".join(map(str, index))
    if len(index) != len(shape):
        raise case.error(f"{what} {text} has {len(index)} numbers, but {len(shape)} are needed for {blob} ({_text(shape)})")
    if not all(0 <= i < n for i, n in zip(index, shape)):
        raise case.error(f"{what} {text} is out of range: in {blob} it goes from {_zeros(shape)} to {_last(case, blob, shape)}")
    return tuple(int(i) for i in index)


def _last(case: Case, blob: str, shape: Index) -> str:
    if 0 in shape:
        raise case.error(f"{blob} of shape {_text(shape)} is empty: nothing to explain")
    return ",".join(str(n - 1) for n in shape)


def _zeros(shape: Index) -> str:
    return ",".join("0" for _ in shape)


def _text(shape: Index) -> str:
    return "x".join(map(str, shape)) or "scalar"
