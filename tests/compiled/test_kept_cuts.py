"""The cuts of work that are kept by the number of threads are of that number, whatever set_num_threads does meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from minicaffe import kernels, set_num_threads
from minicaffe.compiled import depthwise, eltwise, epilogue, tiled, winograd
from minicaffe.compiled.jobs import Calls
from minicaffe.layers.conv.window import Window
from minicaffe.layers.conv.winograd_outliers import all_taps

FLOAT = np.dtype(np.float32)
THREADS = 5
THREE, STRIDED = Window((3, 3), (1, 1), (1, 1), (1, 1)), Window((3, 5), (2, 1), (1, 2), (1, 1))
POINT = Window((1, 1), (1, 1), (0, 0), (1, 1))
MAPS = (1, 40, 60, 64), (40, 1, 3, 3), (1, 40, 60, 64)
DENSE = (1, 48, 60, 64), (96, 48, 3, 3), (1, 96, 60, 64)


def winograd_calls(threads: int) -> Calls:
    return winograd._calls.__wrapped__(
        THREE, 1, DENSE, winograd.factors_shape_by_loops(DENSE[1], THREE, 1), threads, all_taps(THREE)
    )[2]


CUTS: dict[str, Callable[[int], Calls]] = {
    "epilogue": lambda threads: epilogue._calls.__wrapped__(64, 64, 10_000, FLOAT, threads),
    "eltwise": lambda threads: eltwise._calls.__wrapped__(10**6, FLOAT, threads),
    "depthwise 3x3": lambda threads: depthwise._calls.__wrapped__(THREE, MAPS, FLOAT, threads),
    "depthwise": lambda threads: depthwise._calls.__wrapped__(
        STRIDED, (MAPS[0], (40, 1, 3, 5), (1, 40, 30, 64)), FLOAT, threads
    ),
    "tiled, strips": lambda threads: tiled._calls.__wrapped__(
        POINT, 1, ((1, 64, 60, 64), (96, 64, 1, 1), (1, 96, 60, 64)), FLOAT, threads, False
    ),
    "tiled, filters": lambda threads: tiled._calls.__wrapped__(
        POINT, 1, ((1, 512, 3, 5), (1024, 512, 1, 1), (1, 1024, 3, 5)), FLOAT, threads, True
    ),
    "winograd": winograd_calls,
}


@pytest.mark.parametrize("name", CUTS)
def test_a_cut_is_of_the_number_that_it_is_kept_by(name: str) -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with kernels.using("numba"):
        found = []
        for set_meanwhile in (THREADS, 1):
            set_num_threads(set_meanwhile)
            found.append(CUTS[name](THREADS).shape)
        assert found[0] == found[1] != CUTS[name](1).shape
