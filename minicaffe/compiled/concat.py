""""""

from __future__ import annotations

import math
from collections.abc import Sequence

from minicaffe.blob import Blob
from minicaffe.compiled.jobs import BlobJob, Job, KeptStep
from minicaffe.compiled.strided_copy import copy_calls, copy_strided
from minicaffe.kernels import step_of_layer
from minicaffe.layers.shape.concat import Concat, offsets, rows


@step_of_layer(Concat, lambda layer: ((copy_strided,), ()))
def concat_step(layer: Concat, bottom: Sequence[Blob], top: Sequence[Blob]) -> KeptStep | None:
    if len(bottom) == 1 or any(blob.dtype != top[0].dtype for blob in bottom):
        return None
    jobs = []
    for blob, start in zip(bottom, offsets(bottom, layer.axis), strict=True):
        count, length, whole = rows(blob, top[0], layer.axis)
        across = math.prod(blob.shape[layer.axis + 1 :])  # numbers at one place on the axis, which threads can divide
        shape = count, blob.shape[layer.axis], across
        if calls := copy_calls(shape, (length, across, 1), (whole, across, 1), blob.dtype, start):
            jobs.append(BlobJob(Job(calls), (blob,), top[0]))
    return KeptStep(jobs)
