"""The end of a net of one image input that is read as rows of detections, whether a layer makes the rows or a script does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.data.settings import DetectionSettings, changed
from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.layers.proposal.nms import Measure, nms_by
from minicaffe.net import Net

from .inputs import image_inputs
from .outputs import check_scores

POINTS = Measure(unit=0)
"""Overlaps of boxes whose ends are points: width = x2 - x1."""


@dataclass(frozen=True)
class RowsEnd:
    """Where a net's detections come from.

    name: the layer or blob that has the classes. blobs: what is read. sources: what the layer that makes the rows reads, as a
    layer drops scores that are NaN. classes: their number, the background included.
    read: from the arrays of blobs to rows (n, 7): image, class (0 is the background, -1 an empty row), score, corners as parts
    of the image's width and height. kind: what such a net is called, with its article. maker: what fixes the input's size and
    the suppression. settings: the keys that have an effect.
    """

    name: str
    blobs: Sequence[str]
    classes: int
    read: Callable[[Sequence[Array]], Array]
    kind: str
    maker: str = "script"
    settings: tuple[str, ...] = ()
    sources: Sequence[str] = ()

    @property
    def fixed_by(self) -> str:
        """What fixes the input's size and the suppression."""
        return f"the {self.maker} of {self.kind}"

    def check_settings(self, settings: DetectionSettings, holder: str) -> None:
        """Raises Error for settings without an effect, as those of an SSD all are. holder: what the error begins with."""
        without = [key for key in changed(settings) if key not in self.settings]
        if without or not self.settings:
            what = f"{', '.join(without)} of cfg" if self.settings else "cfg"
            raise Error(f"{holder}: {what} has no effect: {self.fixed_by} fixes its size and suppression")

    def rows(self, net: Net) -> Array:
        """The rows (n, 7) of the net's last pass. Raises Error for numbers that are NaN or infinite where they come from."""
        for name in self.sources or self.blobs:
            check_scores(net.blobs[name].read_data(), name)
        rows = self.read([net.blobs[name].read_data() for name in self.blobs])
        check_scores(rows[~(rows[:, 1] < 0), 1:3], self.name)
        return rows


class Family(NamedTuple):
    """Nets whose end is found in one way. names: what they are called; end: a net's end, None for that of another."""

    names: tuple[str, ...]
    end: Callable[[Net], RowsEnd | None]


def script_rows(boxes: Array, scores: Array, classes: NDArray[np.integer]) -> Array:
    """The rows of boxes (n, 4) with scores (n,) and classes (n,) from 0."""
    return np.column_stack([np.zeros(len(boxes)), classes + 1, scores, boxes]).astype(np.float32)


def suppressed_rows(rows: Array, threshold: float, measure: Measure = POINTS) -> Array:
    """Those of rows (n, 7), all classes together, that greedy suppression leaves: an overlap > threshold goes."""
    return rows[nms_by(measure, rows[:, [3, 4, 5, 6, 2]], threshold)]


def image_size(net: Net) -> tuple[int, int] | None:
    """Height and width of the one input of net if it is for images of three channels, else None."""
    names = image_inputs(net)
    if len(net.inputs) != 1 or not names or net.blobs[names[0]].shape[1] != 3:
        return None
    return net.blobs[names[0]].shape[2], net.blobs[names[0]].shape[3]


class LastOutput(NamedTuple):
    """The output of a net that has one, the layer that makes it, and image_size."""

    name: str
    layer: Layer
    size: tuple[int, int]


def last_output(net: Net) -> LastOutput | None:
    """None for a net of other outputs or inputs."""
    size, layer = image_size(net), maker(net, net.outputs[0]) if len(net.outputs) == 1 else None
    return LastOutput(net.outputs[0], layer, size) if layer and size else None


def maker(net: Net, name: str) -> Layer | None:
    """The last layer that writes a blob; None for an input."""
    return next((layer for layer in reversed(net.layers) if name in net.top_names[layer.name]), None)
