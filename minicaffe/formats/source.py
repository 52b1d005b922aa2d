"""The places of layers and fields in a prototxt, which later errors name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Place:
    """A position in a text file; line and column count from 1."""

    file: str
    line: int
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class SkippedField:
    """A field that minicaffe's schema lacks, which the reader left out.

    message: the type of the block that has it ("PoolingParameter"). path: as in LayerSource.fields, in its layer, net or solver
    ("pooling_param.ceil_mode"). value: its text on one line, without comments; "{ }" for an empty block.
    """

    message: str
    name: str
    path: str
    value: str
    place: Place


@dataclass(frozen=True)
class LayerSource:
    """The places of a layer's block and of its fields, and the fields that were skipped.

    fields maps dotted paths inside the layer to places: "type", "bottom[1]", "roi_pooling_param.pooled_h",
    "convolution_param.weight_filler.std". Repeated fields always have an index.
    """

    place: Place
    fields: Mapping[str, Place] = field(default_factory=dict)
    skipped: tuple[SkippedField, ...] = ()

    def at(self, path: str = "") -> Place:
        """Return the place of a field, or of the innermost enclosing block that the file contains."""
        while path:
            if path in self.fields:
                return self.fields[path]
            if path + "[0]" in self.fields:
                return self.fields[path + "[0]"]
            path = path.rpartition(".")[0]
        return self.place
