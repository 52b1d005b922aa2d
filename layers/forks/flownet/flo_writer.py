"""FLOWriter: each flow of a batch, to a file in Middlebury's format. Source: FlowNet 2's flowriter_layer.cpp."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from minicaffe.blob import Blob
from minicaffe.data.state_fields import MOST, Fields
from minicaffe.errors import Error
from minicaffe.files import granted
from minicaffe.formats.flo import MAGIC, write_flo
from minicaffe.layer import Layer


class FLOWriter(Layer):
    """Each forward writes FOLDER/PREFIX, the number of the forward from 0 (seven digits), SUFFIX and .flo; in a batch of
    several, the number in the batch too: (003). writer_param.file: that file instead, over and over.

    bottom: flow (N, 2, H, W), right and down in pixels. No top, no gradient. writer_param: file, folder, which is made, prefix,
    suffix; normalize and scale have no effect on a flow, as in the original.
    Raises LayerError for another shape, no file nor folder, a file that cannot be written, and one that is there and no .flo.
    """

    type = "FLOWriter"
    num_bottom, num_top = 1, 0
    param_block = ("writer_param",)
    weight_names = ()
    has_gradient = False
    index_bottoms = (0,)
    in_sequence = True
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.writer_param
        if not (param.file or param.folder):
            raise self.error("needs a file or a folder", "writer_param")
        try:
            granted(param.file or param.folder)
        except Error as error:
            raise self.error(str(error), "writer_param") from error
        self.forwards = 0

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) != 4 or shape[1] != 2 or not bottom[0].count:
            raise self.error(f"the flow must be (N, 2, H, W), got shape {shape}", "bottom[0]")

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        flows = bottom[0].data
        for n, flow in enumerate(flows):
            name = self._name(f"({n:03})" if len(flows) > 1 else "")
            try:
                if os.path.exists(name) and not _is_flo(name):
                    raise Error("it is there and no .flo file: not overwritten")
                os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
                write_flo(name, flow)
            except (OSError, Error) as error:
                raise self.error(f"cannot write {name}: {error}", "writer_param") from error
        self.forwards += 1

    def _name(self, which: str) -> str:
        param = self.param.writer_param
        return granted(param.file or f"{param.folder}/{param.prefix}{self.forwards:07}{which}{param.suffix}.flo")

    def training_state(self) -> dict[str, Any]:
        return {"forwards": self.forwards}

    def restore_training_state(self, state: dict[str, Any]) -> None:
        self.forwards = Fields(state).whole("forwards", 0, MOST)


def _is_flo(name: str) -> bool:
    with open(name, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC
