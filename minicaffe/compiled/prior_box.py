"""PriorBox as a kept step: its boxes are computed once, and written again only if the top has been overwritten."""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Blob, Unchanged
from minicaffe.compiled.jobs import KeptStep
from minicaffe.kernels import step_of_layer
from minicaffe.layers.ssd.prior_box import PriorBox


@step_of_layer(PriorBox)
def prior_box_step(layer: PriorBox, bottom: Sequence[Blob], top: Sequence[Blob]) -> KeptStep:
    boxes = layer.boxes(bottom, top)
    written: Unchanged | None = None

    def put() -> None:
        nonlocal written
        if written is None or not written.holds():
            top[0].data[...] = boxes
            written = Unchanged(top)

    return KeptStep([], before=put)
