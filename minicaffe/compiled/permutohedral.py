"""The permutohedral filter by a compiled loop: maps split across all threads."""

from __future__ import annotations

from functools import partial

import numpy as np

from minicaffe.blob import Array
from minicaffe.compiled.jit import loop
from minicaffe.kernels import provides
from minicaffe.layers.forks.crf import permutohedral
from minicaffe.layers.forks.crf.permutohedral import Int32
from minicaffe.threads import parts, run

filter_planes = loop("T[:,::1], int32[:,::1], T[:,::1], int32[:,:,::1], T[:,::1], T[:,::1]")(permutohedral.filter_by_definition)


@provides(permutohedral.filter_maps, loops=(filter_planes,))
def filter_maps(x: Array, corners: Int32, shares: Array, neighbours: Int32, y: Array) -> None:
    """Split the maps across the threads."""
    run(partial(_filter, x[part], corners, shares, neighbours, y[part]) for part in parts(len(x)))


def _filter(x: Array, corners: Int32, shares: Array, neighbours: Int32, y: Array) -> None:
    filter_planes(x, corners, shares, neighbours, np.empty((2, neighbours.shape[1] + 1), x.dtype), y)
