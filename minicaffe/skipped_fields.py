"""Which of a prototxt's unknown fields a net cannot do without. Source: what Caffe reads of a layer.

A layer reads the block of its own type, and what stands outside blocks; a field in another type's block means nothing to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from . import registry
from .errors import LayerError
from .formats import skipped
from .formats.prototxt import NetFile, all_skipped
from .formats.source import SkippedField
from .layer import Layer
from .layers import FORK_TYPES

_RULE = "NetStateRule"
_COMMON = ("transform_param", "loss_param")


def of_net(file: NetFile, strict: bool | None) -> list[SkippedField]:
    """The fields outside layers, and in rules, that matter. Raises PrototxtError for one, unless strict is False."""
    in_rules = (field for source in file.sources for field in source.skipped if field.message == _RULE)
    found = [field for field in chain(file.skipped, in_rules) if skipped.matters(field)]
    skipped.refuse(found, strict)
    skipped.say_harmless(all_skipped(file))
    return found


def of_layer(layer: Layer, strict: bool | None) -> list[SkippedField]:
    """The fields of a layer that matter. Raises LayerError for one, unless strict is False."""
    given = [field for field in (layer.source.skipped if layer.source else ()) if field.message != _RULE]
    found = [field for field in _read(layer, given) if skipped.matters(field)]
    if found and skipped.is_strict(strict):
        reason = f"{skipped.sentence(found[0])} ({found[0].place})"
        raise LayerError(f'{layer.type} layer "{layer.name}": {reason}\nhint: {skipped.hint()}')
    return found


def of_file(file: NetFile, strict: bool | None) -> list[SkippedField]:
    """The fields of all layers, of any phase, and outside them, that matter, without regard to what a type reads: for a tool
    that writes the whole net anew. Raises PrototxtError for one, unless strict is False."""
    given: Iterable[SkippedField] = chain(file.skipped, *(source.skipped for source in file.sources))
    found = [field for field in given if skipped.matters(field)]
    skipped.refuse(found, strict)
    return found


def _read(layer: Layer, fields: Sequence[SkippedField]) -> list[SkippedField]:
    """Those of its fields that a layer of this type would read, and cannot."""
    if not fields:
        return []
    read = (*layer.param_block, *_COMMON)
    others = {_plain(name) for name in (*registry.types, *FORK_TYPES)} - {_plain(layer.type)}

    def is_read(field: SkippedField) -> bool:
        block, inside, _ = field.path.partition(".")
        if not block.endswith("_param"):
            return True
        if inside:
            return block in read or not registry.is_built_in(type(layer))
        if block in layer.param_block:  # a class of the user's, which finds the block's text in its source
            return False
        return _plain(block.removesuffix("_param")) not in others

    return [field for field in fields if is_read(field)]


def _plain(name: str) -> str:
    """ROIWarping and roi_warping alike."""
    return name.replace("_", "").lower()
