""""""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.compiled.jobs import BlobJob, Job, KeptStep
from minicaffe.compiled.strided_copy import copy_calls, copy_strided
from minicaffe.kernels import step_of_layer
from minicaffe.layers.shape.rearranged import Rearranged, steps_of


@step_of_layer(Rearranged, lambda layer: ((copy_strided,), ()))
def rearranged_step(layer: Rearranged, bottom: Sequence[Blob], top: Sequence[Blob]) -> KeptStep | None:
    if bottom[0].dtype != top[0].dtype:
        return None
    whole = np.empty(bottom[0].shape, np.int8)  # int8: the steps in bytes are then steps in numbers
    view = layer.arranged(whole)
    calls = copy_calls(view.shape, view.strides, steps_of(view.shape), top[0].dtype)
    return None if calls is None else KeptStep([BlobJob(Job(calls), (bottom[0],), top[0])])
