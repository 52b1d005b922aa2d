"""The registry: every layer type that has an ONNX form, and the function that adds it to a graph."""

from __future__ import annotations

from minicaffe.layer import Layer

from . import arrangement, neurons, normalization, pooling, position_sensitive, products, proposal, rois, ssd
from .graph import Emitter
from .sizes import kind_of

FAMILIES = (arrangement, neurons, normalization, pooling, position_sensitive, products, proposal, rois, ssd)

EMITTERS: dict[str, Emitter] = {kind: emitter for family in FAMILIES for kind, emitter in family.EMITTERS.items()}


def emitter_of(layer: Layer) -> Emitter | None:
    """The function for a layer; None where it has no ONNX form. A class of the user's has none, whatever its type."""
    from minicaffe.layers import CATALOGUE

    kind = kind_of(layer)
    built_in = type(layer).__module__.startswith("minicaffe.layers.") and (
        layer.type == "Python" or isinstance(layer, CATALOGUE.get(kind, ()))
    )
    return EMITTERS.get(kind) if built_in else None
