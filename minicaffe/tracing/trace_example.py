"""One number of each layer explained in a trace, so that a page without Python shows how such a number is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minicaffe.blob import Array
from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.net import Net
from minicaffe.registry import explains

from .explanations.case import Case
from .explanations.explanation import Explanation
from .explanations.runs import shown_name
from .explanations.terms import Index


@dataclass(frozen=True)
class Example:
    """at: an index into the first top. lines: the text of `minicaffe explain` for it."""

    at: Index
    lines: list[str]


def example(net: Net, i: int, bottoms: Sequence[Array]) -> Example | None:
    """Of layer i, which has just run forward; bottoms: as they were before. The greatest number of the first top's first item,
    of an ROI layer the middle bin of the first roi's first channel. None where there is nothing to explain."""
    layer, node = net.layers[i], net.nodes[i]
    explain_it = explains.get(type(layer))
    tops = [top.read_data() for top in node.tops]
    if explain_it is None or not bottoms or not tops or not tops[0].size:
        return None
    case = Case(layer, [shown_name(net, name) for name in node.bottom_names], list(node.top_names), bottoms, tops)
    at = _place(layer, tops[0])
    with np.errstate(all="ignore"):  # as in the layer
        try:
            explanation: Explanation = explain_it(case, at)
        except Error:  # it says why to who asks for this number
            return None
        return Example(at, explanation.text().splitlines())


def _place(layer: Layer, y: Array) -> Index:
    if isinstance(layer, RoiLayer) and y.ndim == 4:
        return (0, 0, y.shape[2] // 2, y.shape[3] // 2)
    if not y.ndim:
        return ()
    return (0, *(int(place) for place in np.unravel_index(np.argmax(y[0]), y.shape[1:])))
