"""The generate_anchors.py of a net's own repository, for nets whose Python layers have no anchors in param_str."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from minicaffe.errors import Error
from minicaffe.formats.prototxt import NetFile
from minicaffe.layers.proposal.anchor_defaults import NAMES, RATIOS, SCALES, own_defaults, read_anchors
from minicaffe.layers.proposal.param_str import StandIn, layer_parameters
from minicaffe.net import Net

USUAL = {"base_size": [16], "ratios": RATIOS, "scales": SCALES}


class OwnAnchors(NamedTuple):
    """A generate_anchors.py, by name its numbers that are not py-faster-rcnn's, and why it cannot be read, or ""."""

    file: Path
    numbers: Mapping[str, Sequence[float]]
    problem: str = ""


def own_anchors(net: NetFile, path: Path) -> OwnAnchors | None:
    """Return the anchors of the file near a net with Python layers, or None for no file or the usual anchors.

    path: the net's.
    """
    if not any(layer.type == "Python" for layer in net.param.layer) or (found := own_defaults(path)) is None:
        return None
    try:
        numbers = read_anchors(found.file)
    except Error as error:
        return OwnAnchors(found.file, {}, str(error))
    other = {name: values for name, values in numbers.items() if values != USUAL[name]}
    return OwnAnchors(found.file, other) if other else None


def reads_anchors(net: Net, own: OwnAnchors) -> bool:
    """Return True if a Python layer of a net makes anchors of numbers that its param_str does not give."""
    names = set(own.numbers or NAMES)
    return any(
        isinstance(layer, StandIn) and layer.takes_anchors and names - set(layer_parameters(layer)) for layer in net.layers
    )
